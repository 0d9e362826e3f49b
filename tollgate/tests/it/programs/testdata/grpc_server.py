"""A gRPC server that echoes every message of a stream, on a port of its own choice, which it prints."""

from concurrent import futures

import grpc


class Echo(grpc.GenericRpcHandler):
    """Messages are bytes: no code has to be generated."""

    def service(self, call):
        return grpc.stream_stream_rpc_method_handler(lambda messages, context: messages)


options = [("grpc.max_receive_message_length", -1)]
server = grpc.server(futures.ThreadPoolExecutor(4), [Echo()], options=options)
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
