package enginehash

import (
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// Fields is a JSON object whose order is kept, because it enters the engines' hashes: request kwargs, server options.
type Fields []Field

// Field is one member.
type Field struct {
	Key   string
	Value Value
}

// Kind is the type of a Value.
type Kind uint8

// The kinds of values.
const (
	Null   Kind = iota
	Bool        // Raw is one byte, 0 or 1
	Int         // Raw is an int64, little-endian
	Float       // Raw is a float64, little-endian
	String      // Raw is its UTF-8
	Huge        // an integer beyond int64: Raw is its digits
	List
	Object
)

// Value is a JSON value as Python reads it: 1 and 1.0 differ.
type Value struct {
	Kind   Kind
	Raw    []byte // of a scalar: its representation in NumPy's memory
	List   []Value
	Fields Fields
}

// TextOf returns a string as a Value.
func TextOf(s string) Value { return Value{Kind: String, Raw: []byte(s)} }

// ObjectOf returns an object as a Value.
func ObjectOf(f Fields) Value { return Value{Kind: Object, Fields: f} }

// IntOf returns an integer as a Value.
func IntOf(n int) Value {
	return Value{Kind: Int, Raw: binary.LittleEndian.AppendUint64(nil, uint64(n))}
}

// IntsOf returns a list of integers as a Value.
func IntsOf(list []int) Value {
	v := Value{Kind: List, List: make([]Value, len(list))}
	for i, n := range list {
		v.List[i] = IntOf(n)
	}
	return v
}

// FloatOf returns a float as a Value.
func FloatOf(f float64) Value {
	return Value{Kind: Float, Raw: binary.LittleEndian.AppendUint64(nil, math.Float64bits(f))}
}

// BoolOf returns a bool as a Value.
func BoolOf(b bool) Value {
	v := Value{Kind: Bool, Raw: []byte{0}}
	if b {
		v.Raw[0] = 1
	}
	return v
}

// Number returns the value of an Int or a Float; ok is false for other kinds.
func (v Value) Number() (f float64, ok bool) {
	switch v.Kind {
	case Int:
		return float64(int64(binary.LittleEndian.Uint64(v.Raw))), true
	case Float:
		return math.Float64frombits(binary.LittleEndian.Uint64(v.Raw)), true
	}
	return 0, false
}

const maxDepth = 32

var errNoObject = errors.New("kwargs: want a JSON object of at most 32 levels")

// ParseFields reads a JSON object (a request's mm_processor_kwargs, a server's --media-io-kwargs). null and "" give nil.
func ParseFields(json []byte) (Fields, error) {
	r := gjson.ParseBytes(json)
	if len(json) == 0 || r.Type == gjson.Null && r.Raw == "null" {
		return nil, nil
	}
	if !gjson.ValidBytes(json) || !r.IsObject() {
		return nil, errNoObject
	}
	v, err := parse(r, 0)
	return v.Fields, err
}

func parse(r gjson.Result, depth int) (v Value, err error) {
	if depth > maxDepth {
		return v, errNoObject
	}
	switch r.Type {
	case gjson.False, gjson.True:
		return BoolOf(r.Type == gjson.True), nil
	case gjson.Number:
		return number(r.Raw), nil
	case gjson.String:
		return TextOf(r.String()), nil
	case gjson.JSON:
		v.Kind = Object
		if r.IsArray() {
			v.Kind = List
		}
		r.ForEach(func(k, e gjson.Result) bool {
			var child Value
			child, err = parse(e, depth+1)
			if err != nil {
				return false
			}
			if v.Kind == List {
				v.List = append(v.List, child)
			} else {
				v.Fields = v.Fields.Set(Field{k.String(), child})
			}
			return true
		})
	}
	return v, err
}

func number(raw string) Value {
	if strings.ContainsAny(raw, ".eE") {
		f, _ := strconv.ParseFloat(raw, 64) // out of range: infinity, as in Python
		return FloatOf(f)
	}
	n, err := strconv.Atoi(raw)
	if err != nil {
		return Value{Kind: Huge, Raw: []byte(raw)}
	}
	return IntOf(n)
}

// Set overwrites a member in place or appends it, as a Python dict does.
func (f Fields) Set(m Field) Fields {
	for i := range f {
		if f[i].Key == m.Key {
			f[i].Value = m.Value
			return f
		}
	}
	return append(f, m)
}

// Get returns a member.
func (f Fields) Get(key string) (Value, bool) {
	for i := range f {
		if f[i].Key == key {
			return f[i].Value, true
		}
	}
	return Value{}, false
}

// Object returns a member that is an object, nil otherwise.
func (f Fields) Object(key string) Fields {
	v, _ := f.Get(key)
	return v.Fields
}
