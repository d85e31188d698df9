package extproc

import (
	"bytes"
	"strings"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/router"
)

// An engine keeps its answers of /v1/responses to itself, so whatever names one by its id must go to the worker that gave
// it: GET, DELETE and cancel of /v1/responses/ID, and requests with a previous_response_id. The id is the engine's own and
// stands at the beginning of the answer. There alone Envoy is asked to show answers (with a full-duplex body it cannot be
// asked: a route of its own says so); the stream ends once the id is read, before the client has it, so that what follows
// is never too early. The router remembers (router/stored.go).

const (
	responsesPath = "/v1/responses"
	maxResponseID = 256
	// maxBeginning bounds what is read of an answer to find its id. vLLM and SGLang write it first.
	maxBeginning = 64 << 10
)

// sendBodyAndAnswer asks for the body, and later for the answer as it comes.
var sendBodyAndAnswer = encode(&extprocv3.ProcessingResponse{
	Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}},
	ModeOverride: &modev3.ProcessingMode{
		RequestBodyMode:    modev3.ProcessingMode_BUFFERED,
		ResponseHeaderMode: modev3.ProcessingMode_SEND,
		ResponseBodyMode:   modev3.ProcessingMode_STREAMED,
	},
})

// stored is the id in /v1/responses/ID and what lies below it; empty for other paths.
func (h *head) stored() string {
	rest, ok := strings.CutPrefix(h.path, responsesPath+"/")
	id, _, _ := strings.Cut(rest, "/")
	if !ok || len(id) > maxResponseID {
		return ""
	}
	return id
}

// learn looks for the id in the next piece of an answer, and tells it with the worker that gives the answer.
func (c *call) learn(piece *extprocv3.HttpBody) {
	if !c.learns {
		return
	}
	c.answered = append(c.answered, piece.GetBody()[:min(len(piece.GetBody()), maxBeginning-len(c.answered))]...)
	id := answerID(c.answered)
	if id == "" && len(c.answered) < maxBeginning && !piece.GetEndOfStream() {
		return
	}
	c.learns, c.answered = false, nil
	if id != "" {
		c.observeSafely(router.Outcome{ID: c.id, Phase: router.Started, Addr: c.served, Answer: id, CachedTokens: -1, PromptTokens: -1})
	}
}

// answerID reads the id from the beginning of an answer: of a JSON object, or of the events of a stream, which name the
// answer as their "response". Empty: not there, or not yet whole.
func answerID(b []byte) string {
	path := "id"
	if b = bytes.TrimLeft(b, " \t\r\n"); !bytes.HasPrefix(b, []byte("{")) {
		path = "response.id"
	}
	for len(b) > 0 {
		line := b
		if path != "id" {
			line, b, _ = bytes.Cut(b, []byte("\n"))
			if line, _ = bytes.CutPrefix(line, []byte("data:")); len(line) == 0 {
				continue
			}
		} else {
			b = nil
		}
		if v := gjson.GetBytes(line, path); v.Type == gjson.String && strings.HasSuffix(v.Raw, `"`) && len(v.Raw) > 2 && len(v.Str) <= maxResponseID {
			return v.Str
		}
	}
	return ""
}
