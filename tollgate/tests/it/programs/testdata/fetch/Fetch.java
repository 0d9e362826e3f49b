// Posts its input by a client of Java's own, and prints the response: Fetch CLIENT PROXY URL CERTIFICATE

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.Authenticator;
import java.net.HttpURLConnection;
import java.net.InetSocketAddress;
import java.net.PasswordAuthentication;
import java.net.Proxy;
import java.net.ProxySelector;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import javax.net.ssl.HttpsURLConnection;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

public class Fetch {
    public static void main(String[] words) throws Exception {
        URI proxy = URI.create(words[1]);
        URI url = URI.create(words[2]);
        SSLContext trust = trust(Path.of(words[3]));
        byte[] body = System.in.readAllBytes();
        byte[] answer = words[0].equals("HttpClient")
            ? byHttpClient(proxy, url, trust, body)
            : byConnection(proxy, url, trust, body);
        System.out.write(answer);
        System.out.flush();
    }

    static byte[] byHttpClient(URI proxy, URI url, SSLContext trust, byte[] body) throws Exception {
        HttpClient.Builder client = HttpClient.newBuilder().sslContext(trust).version(HttpClient.Version.HTTP_1_1);
        client.proxy(ProxySelector.of(new InetSocketAddress(proxy.getHost(), proxy.getPort())));
        if (proxy.getUserInfo() != null) {
            client.authenticator(authenticator(proxy));
        }
        HttpRequest request = HttpRequest.newBuilder(url).POST(HttpRequest.BodyPublishers.ofByteArray(body)).build();
        HttpResponse<byte[]> answer = client.build().send(request, HttpResponse.BodyHandlers.ofByteArray());
        if (answer.statusCode() != 200) {
            throw new IOException(answer.statusCode() + ": " + answer.headers().map());
        }
        return answer.body();
    }

    static byte[] byConnection(URI proxy, URI url, SSLContext trust, byte[] body) throws Exception {
        if (proxy.getUserInfo() != null) {
            Authenticator.setDefault(authenticator(proxy));
        }
        Proxy.Type type = proxy.getScheme().equals("http") ? Proxy.Type.HTTP : Proxy.Type.SOCKS;
        InetSocketAddress place = new InetSocketAddress(proxy.getHost(), proxy.getPort());
        HttpURLConnection connection = (HttpURLConnection) url.toURL().openConnection(new Proxy(type, place));
        if (connection instanceof HttpsURLConnection) {
            ((HttpsURLConnection) connection).setSSLSocketFactory(trust.getSocketFactory());
        }
        connection.setDoOutput(true);
        try (OutputStream out = connection.getOutputStream()) {
            out.write(body);
        }
        try (InputStream in = connection.getInputStream()) {
            return in.readAllBytes();
        }
    }

    static Authenticator authenticator(URI proxy) {
        String[] pair = proxy.getUserInfo().split(":", 2);
        return new Authenticator() {
            @Override
            protected PasswordAuthentication getPasswordAuthentication() {
                return new PasswordAuthentication(pair[0], pair[1].toCharArray());
            }
        };
    }

    static SSLContext trust(Path file) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream in = Files.newInputStream(file)) {
            store.setCertificateEntry("it", CertificateFactory.getInstance("X.509").generateCertificate(in));
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        return context;
    }
}
