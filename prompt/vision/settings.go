package vision

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
)

// Kwargs are mm_processor_kwargs, of a request or of the server's flag.
type Kwargs map[string]any

// ParseKwargs reads mm_processor_kwargs from JSON. It returns nil for empty input and null.
func ParseKwargs(raw []byte) (Kwargs, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var k Kwargs
	if err := json.Unmarshal(raw, &k); err != nil {
		return nil, fmt.Errorf("mm_processor_kwargs: want a JSON object: %w", err)
	}
	return k, nil
}

// setting is the places where the value of a setting may be found; the first hit wins:
//
//	image.KEY      mm_processor_kwargs (request, then server), then the image
//	               processor's own file
//	processor.KEY  kwargs, then the top level of processor_config.json
//	config.KEY     config.json (thinker_config's for omni models)
//	kw.KEY         kwargs only
//	=LITERAL       the engine's class default
//
// KEY may be dotted. A JSON null counts as absent. A class default of the image processor applies only if there is a processor file
// at all, since the engine does not start without one.
type setting []string

// settings are the files of a directory, overridden by the kwargs.
type settings struct {
	reading   Reading
	kw        map[string]any
	image     map[string]any
	processor map[string]any
	config    map[string]any
	tokenizer map[string]any
	hasFile   bool  // an image processor file was found
	err       error // the first error; values read after it are meaningless
}

// with returns the settings overridden by a request's kwargs.
func (s *settings) with(kw Kwargs) *settings {
	c := *s
	c.kw = make(map[string]any, len(s.kw)+len(kw))
	maps.Copy(c.kw, s.kw)
	maps.Copy(c.kw, kw)
	// images_kwargs is the processors' own grouping; it overrides a bare setting.
	if nested, ok := c.kw["images_kwargs"].(map[string]any); ok {
		maps.Copy(c.kw, nested)
	}
	return &c
}

func (s *settings) fail(format string, a ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, a...)
	}
}

func dig(m map[string]any, path string) any {
	for {
		key, rest, more := strings.Cut(path, ".")
		v := m[key]
		if !more {
			return v
		}
		next, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		m, path = next, rest
	}
}

// find returns the first hit of v and where it was found.
func (s *settings) find(v setting) (any, string) {
	for _, place := range v {
		if lit, ok := strings.CutPrefix(place, "="); ok {
			if !s.hasFile && v.fromImage() {
				return nil, ""
			}
			if n, err := strconv.ParseFloat(lit, 64); err == nil {
				return n, place
			}
			if b, err := strconv.ParseBool(lit); err == nil {
				return b, place
			}
			return lit, place
		}
		scope, key, _ := strings.Cut(place, ".")
		for _, file := range s.scope(scope) {
			if found := dig(file, key); found != nil {
				return found, place
			}
		}
	}
	return nil, ""
}

// scope returns the files that a place refers to, in order of precedence.
func (s *settings) scope(name string) [2]map[string]any {
	switch name {
	case "kw":
		return [2]map[string]any{s.kw}
	case "image":
		return [2]map[string]any{s.kw, s.image}
	case "processor":
		return [2]map[string]any{s.kw, s.processor}
	}
	return [2]map[string]any{s.config}
}

// fromImage reports whether v is looked up in the image processor's file and nowhere else in the directory.
func (v setting) fromImage() bool {
	image := false
	for _, place := range v {
		switch {
		case strings.HasPrefix(place, "image."):
			image = true
		case !strings.HasPrefix(place, "=") && !strings.HasPrefix(place, "kw."):
			return false
		}
	}
	return image
}

func (s *settings) missing(v setting) {
	if !s.hasFile && v.fromImage() {
		s.fail("needs %s, but there is neither preprocessor_config.json nor an image_processor in processor_config.json", v)
		return
	}
	s.fail("needs a value for %s, found none", v)
}

func (v setting) String() string {
	return strings.Join(v, " or ")
}

// float reads a number. If it is absent or not a number, that is an error.
func (s *settings) float(v setting) float64 {
	found, place := s.find(v)
	if found == nil {
		s.missing(v)
		return 1
	}
	f, ok := number(found)
	if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
		s.fail("%s: want a number, have %T", place, found)
		return 1
	}
	return f
}

func number(v any) (float64, bool) {
	switch n := v.(type) {
	case float64:
		return n, true
	case int:
		return float64(n), true
	case string:
		f, err := strconv.ParseFloat(n, 64)
		return f, err == nil
	}
	return 0, false
}

// maxSetting bounds every integer setting, so that products of two of them and of pixel counts stay within int64 or are checked in
// floating point.
const maxSetting = 1 << 40

// int reads a positive integer.
func (s *settings) int(v setting) int { return s.small(v, 1, maxSetting) }

// small reads an integer from lo to hi: tile counts and the like, which bound loops and tables. A list of equal numbers and a
// {"height","width"} pair of equal sides count as one number.
func (s *settings) small(v setting, lo, hi int) int {
	found, place := s.find(v)
	switch t := found.(type) {
	case nil:
		s.missing(v)
		return lo
	case []any:
		if len(t) == 2 && t[0] == t[1] {
			found = t[0]
		}
	case map[string]any:
		if h, ok := t["height"]; ok && h == t["width"] {
			found = h
		}
	}
	n, ok := number(found)
	if !ok || n != math.Trunc(n) || n < float64(lo) || n > float64(hi) {
		s.fail("%s: want an integer from %d to %d, have %v", place, lo, hi, found)
		return lo
	}
	return int(n)
}

// bool reads a switch; absent is false.
func (s *settings) bool(v setting) bool {
	found, place := s.find(v)
	switch t := found.(type) {
	case nil:
		return false
	case bool:
		return t
	case float64:
		return t != 0
	}
	s.fail("%s: want true or false, have %v", place, found)
	return false
}

// text reads a string; absent is "".
func (s *settings) text(v setting) string {
	found, place := s.find(v)
	switch t := found.(type) {
	case nil:
		return ""
	case string:
		return t
	case float64:
		return strconv.FormatFloat(t, 'g', -1, 64)
	}
	s.fail("%s: want a string, have %v", place, found)
	return ""
}

// pairs reads a list of [a, b] integers, at most 1024 of them.
func (s *settings) pairs(v setting) [][2]int {
	found, place := s.find(v)
	if found == nil {
		s.missing(v)
		return nil
	}
	list, ok := found.([]any)
	if !ok || len(list) == 0 || len(list) > 1024 {
		s.fail("%s: want a list of up to 1024 [height, width] pairs, have %T", place, found)
		return nil
	}
	out := make([][2]int, len(list))
	for i, e := range list {
		p, ok := e.([]any)
		if !ok || len(p) != 2 {
			s.fail("%s[%d]: want a pair of integers, have %v", place, i, e)
			return nil
		}
		for j := range p {
			f, ok := number(p[j])
			if !ok || f < 1 || f > 1<<20 || f != math.Trunc(f) {
				s.fail("%s[%d]: want integers from 1 to 2^20, have %v", place, i, e)
				return nil
			}
			out[i][j] = int(f)
		}
	}
	return out
}
