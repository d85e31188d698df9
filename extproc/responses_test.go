package extproc

import (
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/router"
)

func TestAnswerID(t *testing.T) {
	const created = `event: response.created` + "\n" +
		`data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response"}}` + "\n\n"
	for text, want := range map[string]string{
		`{"id":"resp_1","object":"response"}`:                            "resp_1",
		` {"object":"response","output":[{"id":"msg_1"}],"id":"resp_1"}`: "resp_1",
		`{"id":"resp_1`:                 "", // not complete yet
		`{"output":[{"id":"msg_1"}],"i`: "",
		created:                         "resp_1",
		"data: {\"type\":\"ping\"}\n\n" + created: "resp_1",
		created[:60]: "",
		`{"id":7}`:   "",
		`{"id":""}`:  "",
		`{"id":"` + strings.Repeat("x", maxResponseID+1) + `"}`: "",
		`data: [DONE]`: "",
		"":             "",
		"data:{\"response\":{\"id\":\"resp_2\"}}\r\n": "resp_2",
	} {
		if got := answerID([]byte(text)); got != want {
			t.Errorf("%.80q: %q, want %q", text, got, want)
		}
	}
	c := call{wantsAnswerID: true}
	for range maxBeginning / 1000 {
		c.learnAnswerID(&extprocv3.HttpBody{Body: make([]byte, 1000)})
	}
	if len(c.responseBegin) != maxBeginning/1000*1000 || !c.wantsAnswerID {
		t.Errorf("%d bytes kept: got %v, want %d, true", len(c.responseBegin), c.wantsAnswerID, maxBeginning/1000*1000)
	}
	c.learnAnswerID(&extprocv3.HttpBody{Body: make([]byte, 1000)})
	if c.responseBegin != nil || c.wantsAnswerID {
		t.Errorf("got %d bytes kept of an answer that has no id, want none", len(c.responseBegin))
	}
}

// A worker that sends its answer byte by byte costs a multiple of its bytes, not their square, and the id is found nevertheless.
func TestAnswerInSmallPieces(t *testing.T) {
	for name, text := range map[string]string{"an object": `{"output":"` + strings.Repeat("x", 2*maxBeginning),
		"one line": "data: " + strings.Repeat(`{"a":`, maxBeginning), "empty lines": strings.Repeat("\n", 2*maxBeginning)} {
		c := call{wantsAnswerID: true}
		for i := 0; c.wantsAnswerID; i++ {
			c.learnAnswerID(&extprocv3.HttpBody{Body: []byte(text[i : i+1])})
		}
		if c.searched > (maxLooks+1)*maxBeginning {
			t.Errorf("%s: got %d bytes searched of %d, want at most %d", name, c.searched, maxBeginning, (maxLooks+1)*maxBeginning)
		}
	}
	var got router.Outcome
	server := &Server{observe: func(o router.Outcome) { got = o }}
	const text = `{"object":"response","id":"resp_1"`
	c := call{Server: server, id: "d", served: "w:1", wantsAnswerID: true}
	for i := range text {
		if !c.wantsAnswerID {
			t.Fatalf("%q is learned of %q, want c.wantsAnswerID", got.Answer, text[:i])
		}
		c.learnAnswerID(&extprocv3.HttpBody{Body: []byte(text[i : i+1])})
	}
	if got.Answer != "resp_1" || got.Addr != "w:1" {
		t.Errorf("got %+v, want Answer %q, Addr %q", got, "resp_1", "w:1")
	}
}

// FuzzAnswerID checks that pieces are read like the whole, and that only a complete id is ever read.
func FuzzAnswerID(f *testing.F) {
	f.Add([]byte(`{"id":"resp_1","object":"response"}`))
	f.Add([]byte("data: {\"response\":{\"id\":\"resp_1\"}}\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if id := answerID(b); len(id) > maxResponseID {
			t.Errorf("%d bytes, want at most %d", len(id), maxResponseID)
		} else if id != "" && gjson.ValidBytes(b) && b[0] == '{' && gjson.GetBytes(b, "id").Str != id {
			t.Errorf(`%q of %q, want id == "" or !gjson.ValidBytes(b) or b[0] != '{' or gjson.GetBytes(b, "id").Str == %v`, id, b, id)
		}
	})
}

func TestStoredPath(t *testing.T) {
	for path, want := range map[string]string{"/v1/responses/resp_1": "resp_1", "/v1/responses/resp_1/cancel": "resp_1", "/v1/responses": "",
		"/v1/responses/": "", "/v1/responsesx/resp_1": "", "/v1/responses/" + strings.Repeat("x", maxResponseID+1): ""} {
		if got := (&head{path: path}).stored(); got != want {
			t.Errorf("%.40s: %q, want %q", path, got, want)
		}
	}
}
