// Posts its input by net/http, and prints the response: fetch.go PROXY URL CERTIFICATE
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
)

func main() {
	// Go's `socks5` resolves names at the proxy, which curl calls `socks5h`.
	proxy, err := url.Parse(strings.Replace(os.Args[1], "socks5h:", "socks5:", 1))
	check(err)
	certificate, err := os.ReadFile(os.Args[3])
	check(err)
	trust := x509.NewCertPool()
	trust.AppendCertsFromPEM(certificate)
	client := &http.Client{Transport: &http.Transport{
		Proxy:           http.ProxyURL(proxy),
		TLSClientConfig: &tls.Config{RootCAs: trust},
	}}
	answer, err := client.Post(os.Args[2], "application/octet-stream", os.Stdin)
	check(err)
	if answer.StatusCode != http.StatusOK {
		check(fmt.Errorf("%s", answer.Status))
	}
	_, err = io.Copy(os.Stdout, answer.Body)
	check(err)
	client.CloseIdleConnections()
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
