package router

import (
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/engine"
)

// vLLM from 0.30 on puts a request's session id into the events of what it stores, and uses it for nothing else (read in
// 0.30.0, 0.31.0 and 0.32.0). A request that has none gets the decision's id, so that the audit knows whose an event is.

// namesSessions tells whether workers of a class name sessions in their events, and may be sent ours.
func namesSessions(s *engine.Server) bool {
	return s.SessionIDs && s.Rules().TakesSessionID
}

// sessionOf is the session id of a request as vLLM finds it: the body's, else the header's, else one among the extra
// arguments; "" for none. A body's that is not a text is none of ours to replace: vLLM refuses it.
func sessionOf(fields map[string]gjson.Result, header string) string {
	if v := fields["session_id"]; v.Type != gjson.Null && v.Raw != `""` {
		return v.String()
	}
	if header != "" {
		return header
	}
	return fields["vllm_xargs"].Get("session_id").String()
}
