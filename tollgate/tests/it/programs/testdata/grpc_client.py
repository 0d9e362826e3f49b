"""A gRPC client with a proxy from the environment: grpc_client.py SERVER"""

import sys

import grpc

sizes = [*range(0, 200 * 1371, 1371), 65_535, 65_536, 5_000_011]
messages = [bytes(number % 251 for number in range(size)) for size in sizes]
options = [("grpc.max_receive_message_length", -1)]
with grpc.insecure_channel(sys.argv[1], options) as channel:
    echoes = channel.stream_stream("/sample.Echo/Echo")(iter(messages), timeout=60)
    try:
        for message, echo in zip(messages, echoes, strict=True):
            assert echo == message, (len(message), len(echo))
    except grpc.RpcError as error:
        sys.exit(f"{error.code().name}: {error.details()}")
print(len(messages), "messages came back")
