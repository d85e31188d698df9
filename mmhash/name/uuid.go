package name

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// UUID reads a part's uuid as vLLM does: Python's str() of the JSON value. present is false for null and for no uuid at
// all. Lists and objects are not computable (vLLM takes them, by Python's repr).
func UUID(raw []byte) (text string, present bool, err error) {
	r := gjson.ParseBytes(raw)
	switch {
	case len(raw) == 0 || r.Type == gjson.Null:
		return "", false, nil
	case r.Type == gjson.String:
		return r.String(), true, nil
	case r.Type == gjson.True:
		return "True", true, nil
	case r.Type == gjson.False:
		return "False", true, nil
	case r.Type == gjson.Number && !strings.ContainsAny(r.Raw, ".eE"):
		if r.Raw == "-0" {
			return "0", true, nil
		}
		return r.Raw, true, nil
	case r.Type == gjson.Number:
		return pythonFloat(r.Num), true, nil
	}
	return "", true, fmt.Errorf("%w: uuid is a list or an object", ErrNotComputable)
}

// pythonFloat is repr(float): the shortest digits, an exponent below 1e-4 and from 1e16 up, always a point or exponent.
func pythonFloat(f float64) string {
	e := strconv.FormatFloat(f, 'e', -1, 64)
	_, exp, ok := strings.Cut(e, "e")
	if !ok {
		return strings.ToLower(strings.TrimPrefix(e, "+")) // inf, nan
	}
	if n, _ := strconv.Atoi(exp); n < -4 || n >= 16 {
		return e
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
