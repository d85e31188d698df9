package extproc

import (
	"encoding/json"
	"net/http"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/router"
)

// refusal answers the client instead of a worker, with an error body in the form of the API that the path belongs to. In the
// metadata its reason is refused.
func (t *streamSettings) refusal(path string, d router.Decision) encoded {
	d.Reason = router.RefusedByUs
	code := d.Refuse.Status
	if code < 400 || code > 599 { // Envoy turns anything below 200 into a 200
		code = http.StatusServiceUnavailable
	}
	var headers []*corev3.HeaderValueOption
	if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
		headers = append(headers, header("retry-after", "1"))
	}
	body := errorBody(path, code, d.Refuse.Message)
	return t.metadata(d).appendTo(encode(immediate(code, body, ourDetails+"refused", headers...)))
}

// errorBody returns a refusal as the API of a path writes its errors: Anthropic's below /v1/messages, as vLLM 0.32's
// anthropic/api_router.py does, otherwise OpenAI's. Both SDKs show the message of their own form, and the whole body of any other.
func errorBody(path string, code int, message string) any {
	if path == denied.Messages || strings.HasPrefix(path, denied.Messages+"/") {
		return anthropicError{Type: "error", Error: anthropicDetail{Type: anthropicType(code), Message: message}}
	}
	return openAIError{openAIDetail{Message: message, Type: openAIType(code)}}
}

// openAIError is the body of an error of OpenAI's API; param and code are null.
type openAIError struct {
	Error openAIDetail `json:"error"`
}

type openAIDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// openAIType returns the type of an OpenAI error with this status.
func openAIType(code int) string {
	switch {
	case code == http.StatusTooManyRequests:
		return "rate_limit_error"
	case code >= 500:
		return "server_error"
	}
	return "invalid_request_error"
}

// anthropicError is the body of an error of Anthropic's API.
type anthropicError struct {
	Type  string          `json:"type"` // always error
	Error anthropicDetail `json:"error"`
}

type anthropicDetail struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// anthropicTypes has the error types that Anthropic's API documents by status.
var anthropicTypes = map[int]string{
	http.StatusUnauthorized:          "authentication_error",
	http.StatusForbidden:             "permission_error",
	http.StatusNotFound:              "not_found_error",
	http.StatusRequestTimeout:        "timeout_error",
	http.StatusRequestEntityTooLarge: "request_too_large",
	http.StatusTooManyRequests:       "rate_limit_error",
	http.StatusServiceUnavailable:    "overloaded_error",
	http.StatusGatewayTimeout:        "timeout_error",
}

// anthropicType returns the type of an Anthropic error with this status.
func anthropicType(code int) string {
	if kind, ok := anthropicTypes[code]; ok {
		return kind
	}
	if code >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}

// immediate answers the client instead of a worker. body must have only strings and numbers, which always encode as JSON. details
// are for Envoy's access log.
func immediate(code int, body any, details string, headers ...*corev3.HeaderValueOption) *extprocv3.ProcessingResponse {
	text, _ := json.Marshal(body)
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(code)},
			Headers: &extprocv3.HeaderMutation{SetHeaders: append(headers, header("content-type", "application/json"))},
			Body:    text,
			Details: details,
		}},
	}
}
