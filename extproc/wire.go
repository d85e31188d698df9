package extproc

import (
	"math"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protowire"
)

// Every request waits for its decision to be encoded, so that is done by hand: in 0.3 of the time that protobuf takes for maps
// and 30 small messages, with 9 allocations instead of 79. Tests decode it with protobuf.

// Field numbers of ProcessingResponse and its nested messages.
const (
	fieldHeadersResponse = 1 // ProcessingResponse.request_headers, a HeadersResponse
	fieldAnswerHeaders   = 2 // ProcessingResponse.response_headers, a HeadersResponse
	fieldBodyResponse    = 3 // ProcessingResponse.request_body, a BodyResponse
	fieldAnswerResponse  = 4 // ProcessingResponse.response_body, a BodyResponse
	fieldMetadata        = 8 // ProcessingResponse.dynamic_metadata, a Struct
	fieldCommon          = 1 // response in both, a CommonResponse
	fieldHeaderMutation  = 2 // CommonResponse.header_mutation, a HeaderMutation
	fieldBodyMutation    = 3 // CommonResponse.body_mutation, a BodyMutation
	fieldMutationsBody   = 1 // BodyMutation.body
	fieldStreamed        = 3 // BodyMutation.streamed_response, a StreamedBodyResponse
	fieldStreamedBody    = 1 // StreamedBodyResponse.body
	fieldStreamedEnd     = 2 // StreamedBodyResponse.end_of_stream
	fieldSet             = 1 // HeaderMutation.set_headers, of HeaderValueOption
	fieldRemove          = 2 // HeaderMutation.remove_headers
	fieldHeader          = 1 // HeaderValueOption.header, a HeaderValue
	fieldAppendAction    = 3 // HeaderValueOption.append_action
	fieldKey             = 1 // HeaderValue.key, and the key of a map entry
	fieldRawValue        = 3 // HeaderValue.raw_value
	fieldFields          = 1 // Struct.fields, a map
	fieldValue           = 2 // the value of a map entry, here a Value
	fieldNumber          = 2 // Value.number_value
	fieldString          = 3 // Value.string_value
	fieldStruct          = 5 // Value.struct_value
)

// decisionAnswer returns an answer for the phase with this field number; metadata may be empty.
func decisionAnswer(phase protowire.Number, headers mutation, metadata members) encoded {
	const heads = 32 // tags and lengths around both
	a := make(encoded, 0, len(headers)+len(metadata)+heads+len(overrideNoBody))
	return metadata.appendTo(append(nested(a, len(headers), phase, fieldCommon, fieldHeaderMutation), headers...))
}

// mutation is a HeaderMutation.
type mutation []byte

// set sets one header, replacing existing ones. Only raw_value works: Envoy ignores value and would set an empty header.
func (m *mutation) set(name, value string) {
	const action = 2 // bytes of append_action
	kv := lengthOf(len(name)) + lengthOf(len(value))
	b := appendHead(*m, fieldSet, lengthOf(kv)+action)
	b = appendHead(b, fieldHeader, kv)
	b = append(appendHead(b, fieldKey, len(name)), name...)
	b = append(appendHead(b, fieldRawValue, len(value)), value...)
	b = protowire.AppendTag(b, fieldAppendAction, protowire.VarintType)
	*m = protowire.AppendVarint(b, uint64(corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD))
}

func (m *mutation) remove(names ...string) {
	for _, name := range names {
		*m = append(appendHead(*m, fieldRemove, len(name)), name...)
	}
}

// setOrRemove sets the header, or removes it if value is empty.
func (m *mutation) setOrRemove(name, value string) {
	if value == "" {
		m.remove(name)
	} else {
		m.set(name, value)
	}
}

// members is a Struct.
type members []byte

func (m *members) text(name, value string) {
	b := m.entry(name, lengthOf(len(value)))
	*m = append(appendHead(b, fieldString, len(value)), value...)
}

func (m *members) number(name string, value int) {
	b := m.entry(name, 1+8)
	b = protowire.AppendTag(b, fieldNumber, protowire.Fixed64Type)
	*m = protowire.AppendFixed64(b, math.Float64bits(float64(value)))
}

func (m *members) object(name string, value members) {
	b := m.entry(name, lengthOf(len(value)))
	*m = append(appendHead(b, fieldStruct, len(value)), value...)
}

// entry begins a member whose Value has n bytes.
func (m *members) entry(name string, n int) []byte {
	b := appendHead(*m, fieldFields, lengthOf(len(name))+lengthOf(n))
	b = append(appendHead(b, fieldKey, len(name)), name...)
	return appendHead(b, fieldValue, n)
}

// appendTo adds the metadata to an answer.
func (m members) appendTo(a encoded) encoded {
	if len(m) == 0 {
		return a
	}
	return append(appendHead(a, fieldMetadata, len(m)), m...)
}

// lengthOf returns the size of a field with n bytes of content: all tags here are one byte.
func lengthOf(n int) int { return 1 + protowire.SizeBytes(n) }

// appendHead begins a field of n bytes.
func appendHead(b []byte, field protowire.Number, n int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(n))
}

// nested appends the tags and lengths of nested fields, the innermost having n bytes.
func nested(head []byte, n int, path ...protowire.Number) []byte {
	size := make([]int, len(path)) // size[i]: bytes inside the field path[i]
	for i := len(path) - 1; i >= 0; i-- {
		size[i] = n
		n = protowire.SizeTag(path[i]) + protowire.SizeBytes(n)
	}
	for i, f := range path {
		head = protowire.AppendTag(head, f, protowire.BytesType)
		head = protowire.AppendVarint(head, uint64(size[i]))
	}
	return head
}
