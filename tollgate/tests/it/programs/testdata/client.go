// A client of net/http through the proxy of the environment: client.go SITE FILE
package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const clients = 8

var (
	site, file = os.Args[1], os.Args[2]
	count      int64
	client     = &http.Client{Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		MaxIdleConnsPerHost:   clients,
		MaxConnsPerHost:       clients,
		ExpectContinueTimeout: time.Minute,
	}}
)

// Sends a request and returns the response, whose status must be the given one.
func ask(method, path string, status int, body io.Reader, expect bool) *http.Response {
	request, err := http.NewRequest(method, site+path, body)
	check(err)
	if expect {
		request.Header.Set("Expect", "100-continue")
	}
	answer, err := client.Do(request)
	check(err)
	if answer.StatusCode != status {
		check(fmt.Errorf("%s %s: %s", method, path, answer.Status))
	}
	atomic.AddInt64(&count, 1)
	return answer
}

func read(answer *http.Response) []byte {
	content, err := io.ReadAll(answer.Body)
	check(err)
	check(answer.Body.Close())
	return content
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func expectSame(what string, got, want []byte) {
	if !bytes.Equal(got, want) {
		check(fmt.Errorf("%s: %d bytes came back, or other ones than the %d", what, len(got), len(want)))
	}
}

// The content through a pipe, so that its length is unknown before its end.
func piped(content []byte) io.Reader {
	reader, writer := io.Pipe()
	go func() {
		_, err := writer.Write(content)
		check(err)
		check(writer.Close())
	}()
	return reader
}

func main() {
	var all sync.WaitGroup
	for number := 0; number < clients; number++ {
		all.Add(1)
		go func(number int) {
			defer all.Done()
			for round := 0; round < 25; round++ {
				part := (number*25+round)%50*2 + 1
				text := fmt.Sprintf("arrived(%d, \"%s\".length);\n", part, strings.Repeat("f", part*997))
				expectSame("a part", read(ask("GET", fmt.Sprintf("page/%d.js", part), 200, nil, false)), []byte(text))
			}
		}(number)
	}
	all.Wait()

	content := make([]byte, 5_000_011)
	rand.New(rand.NewSource(1)).Read(content)
	read(ask("PUT", file, 201, bytes.NewReader(content), true))
	head := ask("HEAD", file, 200, nil, false)
	if len(read(head)) != 0 || head.ContentLength != int64(len(content)) {
		check(fmt.Errorf("HEAD tells of %d bytes", head.ContentLength))
	}
	expectSame("the file", read(ask("GET", file, 200, nil, false)), content)
	expectSame("the echo", read(ask("POST", "echo", 200, piped(content), false)), content)
	read(ask("DELETE", file, 204, nil, false))
	client.CloseIdleConnections()
	fmt.Println(count, "requests")
}
