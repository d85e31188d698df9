package name

import (
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// Fields is a JSON object in its own order, which counts in the engines' hashes: request kwargs, server options.
type Fields []Field

// Field is one member.
type Field struct {
	Key   string
	Value Value
}

type kind uint8

const (
	kindNull kind = iota
	kindBool
	kindInt
	kindFloat
	kindString
	kindHuge // an integer beyond int64
	kindList
	kindObject
	kindItem // the place of the picture
)

// Value is a JSON value as Python reads it: 1 and 1.0 differ.
type Value struct {
	kind   kind
	raw    []byte // scalar: the bytes that vLLM hashes
	list   []Value
	fields Fields
}

func text(s string) Value   { return Value{kind: kindString, raw: []byte(s)} }
func object(f Fields) Value { return Value{kind: kindObject, fields: f} }
func integer(n int64) Value {
	return Value{kind: kindInt, raw: binary.LittleEndian.AppendUint64(nil, uint64(n))}
}

const maxDepth = 32

var errNoObject = errors.New("kwargs: want a JSON object of at most 32 levels")

// ParseFields reads a JSON object (a request's mm_processor_kwargs, a server's --media-io-kwargs). null and "" give none.
func ParseFields(json []byte) (Fields, error) {
	r := gjson.ParseBytes(json)
	if len(json) == 0 || r.Type == gjson.Null && r.Raw == "null" {
		return nil, nil
	}
	if !gjson.ValidBytes(json) || !r.IsObject() {
		return nil, errNoObject
	}
	v, err := parse(r, 0)
	return v.fields, err
}

func parse(r gjson.Result, depth int) (v Value, err error) {
	if depth > maxDepth {
		return v, errNoObject
	}
	switch r.Type {
	case gjson.False, gjson.True:
		v.kind, v.raw = kindBool, []byte{0}
		if r.Type == gjson.True {
			v.raw[0] = 1
		}
	case gjson.Number:
		return number(r.Raw), nil
	case gjson.String:
		return text(r.String()), nil
	case gjson.JSON:
		v.kind = kindObject
		if r.IsArray() {
			v.kind, v.list = kindList, []Value{}
		}
		r.ForEach(func(k, e gjson.Result) bool {
			var child Value
			if child, err = parse(e, depth+1); err != nil {
				return false
			}
			if v.kind == kindList {
				v.list = append(v.list, child)
			} else {
				v.fields = v.fields.set(Field{k.String(), child})
			}
			return true
		})
	}
	return v, err
}

func number(raw string) Value {
	if !strings.ContainsAny(raw, ".eE") {
		if n, err := strconv.ParseInt(raw, 10, 64); err == nil {
			return integer(n)
		}
		return Value{kind: kindHuge, raw: []byte(raw)}
	}
	f, _ := strconv.ParseFloat(raw, 64) // beyond the range: infinity, as in Python
	return Value{kind: kindFloat, raw: binary.LittleEndian.AppendUint64(nil, math.Float64bits(f))}
}

// set overwrites a member in its place or appends it, as a Python dict does.
func (f Fields) set(m Field) Fields {
	for i := range f {
		if f[i].Key == m.Key {
			f[i].Value = m.Value
			return f
		}
	}
	return append(f, m)
}

func (f Fields) get(key string) (Value, bool) {
	for i := range f {
		if f[i].Key == key {
			return f[i].Value, true
		}
	}
	return Value{}, false
}

// object gives a member that is an object, nil for any other.
func (f Fields) object(key string) Fields {
	v, _ := f.get(key)
	return v.fields
}

func (f Fields) hasNull() bool {
	for _, m := range f {
		if m.Value.hasNull() {
			return true
		}
	}
	return false
}

func (v Value) hasNull() bool {
	if v.kind == kindNull || v.fields.hasNull() {
		return true
	}
	for _, e := range v.list {
		if e.hasNull() {
			return true
		}
	}
	return false
}
