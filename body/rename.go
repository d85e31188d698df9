package body

import (
	"encoding/json"

	"github.com/tidwall/gjson"
)

// Rename returns the edits that replace the model's name, all of duplicate keys; nil if the name is too long a literal to be one.
func Rename(req *Request, name string) (edits []Edit) {
	text, err := json.Marshal(name)
	if err != nil {
		return nil
	}
	s := req.Body
	gjson.Parse(s.JSON()).ForEach(func(k, v gjson.Result) bool {
		if k.String() != "model" {
			return true
		}
		at := s.offset(v.Raw)
		if _, long := s.Literal(v); long || at < 0 {
			edits = nil
			return false
		}
		from := s.BodyOffset(at)
		edits = append(edits, Edit{From: from, To: from + len(v.Raw), Text: text})
		return true
	})
	return edits
}
