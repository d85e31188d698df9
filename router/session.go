package router

import (
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/engine"
)

// vLLM from 0.30 on writes a request's session id into the events of the blocks that it stores, and uses it for nothing else
// (read in 0.30.0, 0.31.0 and 0.32.0). A request without one gets the decision's id, so that the audit can attribute events.

// namesSessions reports whether workers of a class name sessions in their events and may be sent ours.
func namesSessions(s *engine.Server) bool {
	return s.SessionIDs && s.Rules().TakesSessionID
}

// sessionOf returns the session id of a request as vLLM finds it: in the body, else in the header, else among the extra
// arguments; "" for none. One in the body that is not a string is not replaced: vLLM refuses the request.
func sessionOf(fields map[string]gjson.Result, header string) string {
	if v := fields["session_id"]; v.Type != gjson.Null && v.Raw != `""` {
		return v.String()
	}
	if header != "" {
		return header
	}
	return fields["vllm_xargs"].Get("session_id").String()
}
