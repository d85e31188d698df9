package template

import (
	"math"
	"unicode/utf8"
)

// Kind is the Python type of a Value, as far as templates can distinguish types.
type Kind uint8

const (
	KindInvalid   Kind = iota // the zero Value: no value at all (an unbound local, an argument not given)
	KindUndefined             // jinja2.Undefined
	KindNone
	KindBool
	KindInt // fits int64
	KindBig // an int beyond int64: it can only be printed
	KindFloat
	KindString
	KindMarkup // markupsafe.Markup: a str that escapes what is joined to it
	KindList
	KindTuple
	KindDict
	KindRange  // Python's range, its elements computed
	KindView   // the result of dict.keys, values and items at the time of the call
	KindObject // macros, namespaces, generators, bound methods, loop and the like
)

// Value is one Python value: immutable, safe to share between renderings, 48 bytes, passed by value. String leaves are Go strings
// and may point into request memory, which then lives as long as the Value. The zero Value is "no value"; use None for Python's
// None.
type Value struct {
	kind Kind
	num  uint64 // bool, int64, float64 bits; for Undefined how it arose, such as undefinedName
	str  string // string, markup; digits of a big int; for Undefined its name or message
	ref  any    // *List, *Dict or an object
}

// None is Python's None.
var None = Value{kind: KindNone}

var (
	pyTrue  = Value{kind: KindBool, num: 1}
	pyFalse = Value{kind: KindBool}
	// unset marks a template variable that has no value yet; reading it gives Undefined.
	unset = Value{kind: KindUndefined, num: undefinedUnset}
)

// Bool, Int, Float and String return Python's bool, int, float and str.
func Bool(b bool) Value {
	if b {
		return pyTrue
	}
	return pyFalse
}

func Int(i int64) Value     { return Value{kind: KindInt, num: uint64(i)} }
func Float(f float64) Value { return Value{kind: KindFloat, num: math.Float64bits(f)} }

// String returns a str. s must be valid UTF-8.
func String(s string) Value { return Value{kind: KindString, str: s} }

func markup(s string) Value { return Value{kind: KindMarkup, str: s} }

// List is the storage of a Python list, tuple, range or view of a dict.
type List struct{ items []Value }

// NewList returns a list that owns items.
func NewList(items ...Value) Value { return Value{kind: KindList, ref: &List{items: items}} }

func newTuple(items ...Value) Value { return Value{kind: KindTuple, ref: &List{items: items}} }

func object(o any) Value { return Value{kind: KindObject, ref: o} }

// Kind returns the value's type.
func (v Value) Kind() Kind { return v.kind }

// IsNone reports whether v is None.
func (v Value) IsNone() bool { return v.kind == KindNone }

// IsString reports whether v is a str (or Markup, which is one too).
func (v Value) IsString() bool { return v.kind == KindString || v.kind == KindMarkup }

// Text returns the text of a str, and "" for anything else.
func (v Value) Text() string {
	if v.IsString() {
		return v.str
	}
	return ""
}

// Items returns the elements of a list, tuple or range, and nil for anything else. The caller must not change them.
func (v Value) Items() []Value {
	if l, ok := v.ref.(*List); ok {
		return l.items
	}
	return nil
}

// Dict returns the storage of a dict, and nil for anything else.
func (v Value) Dict() *Dict {
	if v.kind == KindDict {
		return v.ref.(*Dict)
	}
	return nil
}

// Get returns the value of a dict's string key.
func (v Value) Get(key string) (Value, bool) {
	if d := v.Dict(); d != nil {
		return d.Get(key)
	}
	return Value{}, false
}

// Field returns the value of a dict's string key, None if there is none.
func (v Value) Field(key string) Value {
	if v, ok := v.Get(key); ok {
		return v
	}
	return None
}

func (v Value) bool() bool      { return v.num != 0 }
func (v Value) int() int64      { return int64(v.num) }
func (v Value) float() float64  { return math.Float64frombits(v.num) }
func (v Value) valid() bool     { return v.kind != KindInvalid }
func (v Value) isSeq() bool     { return v.kind == KindList || v.kind == KindTuple }
func (v Value) isNumber() bool  { return v.kind >= KindBool && v.kind <= KindFloat }
func (v Value) isInteger() bool { return v.kind >= KindBool && v.kind <= KindBig }

var typeNames = [...]string{KindInvalid: "object", KindUndefined: "Undefined", KindNone: "NoneType", KindBool: "bool",
	KindInt: "int", KindBig: "int", KindFloat: "float", KindString: "str", KindMarkup: "Markup", KindList: "list",
	KindTuple: "tuple", KindDict: "dict", KindRange: "range", KindView: "dict_view", KindObject: "object"}

// typeName is type(v).__name__.
func (v Value) typeName() string {
	if t, ok := v.ref.(interface{ typeName() string }); ok {
		return t.typeName()
	}
	return typeNames[v.kind]
}

// truth is bool(v).
func truth(v Value) bool {
	switch v.kind {
	case KindBool, KindInt:
		return v.num != 0
	case KindFloat:
		return v.float() != 0
	case KindString, KindMarkup:
		return v.str != ""
	case KindBig:
		return true
	}
	n, sized := length(v)
	return v.kind == KindObject && !sized || n != 0
}

// length is len(v); ok is false if Python would raise TypeError.
func length(v Value) (n int, ok bool) {
	switch v.kind {
	case KindUndefined:
		return 0, true
	case KindString, KindMarkup:
		return utf8.RuneCountInString(v.str), true
	case KindList, KindTuple, KindRange, KindView:
		return len(v.Items()), true
	case KindDict:
		return v.ref.(*Dict).Len(), true
	}
	return 0, false
}

// iterable reports whether iter(v) works.
func iterable(v Value) bool {
	_, lazy := v.ref.(*generator)
	_, sized := length(v)
	return lazy || sized
}

// elements returns the elements of an iteration over v; it exhausts a generator. The caller must not change the slice.
func elements(s *state, v Value) (out []Value) {
	switch v.kind {
	case KindUndefined:
		return nil
	case KindList, KindTuple, KindRange, KindView:
		return v.Items()
	case KindDict:
		return keysOf(s, v.ref.(*Dict))
	case KindString, KindMarkup: // for Markup too: only indexing keeps the class
		n := utf8.RuneCountInString(v.str)
		s.list(n)
		out = make([]Value, 0, n)
		for text := v.str; text != ""; {
			_, size := utf8.DecodeRuneInString(text)
			out = append(out, String(text[:size]))
			text = text[size:]
		}
		return out
	}
	g, ok := v.ref.(*generator)
	if !ok {
		raise("'%s' object is not iterable", v.typeName())
	}
	out, g.rest = g.rest, nil
	return out
}

// collect is list(v): a new slice with its elements.
func collect(s *state, v Value) []Value {
	items := elements(s, v)
	s.list(len(items))
	return append(make([]Value, 0, len(items)), items...)
}

// generator stands for Jinja2's lazy objects: exhausted by one pass, without a length, always true. Its elements are computed at
// once.
type generator struct{ rest []Value }

func (*generator) typeName() string { return "generator" }

func generate(items []Value) Value { return object(&generator{items}) }

// How an Undefined arose, in Value.num, for its message.
const (
	undefinedName  = iota // str is the variable's name
	undefinedAttr         // str is the attribute, the next byte of num the owner's kind
	undefinedHint         // str is the message
	undefinedUnset        // an empty template variable
)

func undefined(name string) Value { return Value{kind: KindUndefined, num: undefinedName, str: name} }

func undefinedOf(owner Value, attr string) Value {
	return Value{kind: KindUndefined, num: undefinedAttr | uint64(owner.kind)<<8, str: attr}
}

func undefinedMessage(msg string) Value {
	return Value{kind: KindUndefined, num: undefinedHint, str: msg}
}

// wrongType raises an error with v's type in its message, or the error of using an Undefined.
func wrongType(v Value, format string) Value {
	mustExist(v)
	return raise(format, v.typeName())
}

// mustExist raises the error of using v if v is Undefined.
func mustExist(v Value) {
	if v.kind != KindUndefined {
		return
	}
	owner := Value{kind: Kind(v.num >> 8)}.typeName()
	switch v.num & 0xff {
	case undefinedName:
		raise("%s is undefined", quotePython(v.str))
	case undefinedAttr:
		raise("'%s object' has no attribute %s", owner, quotePython(v.str))
	}
	raise("%s", v.str)
}

func (v Value) isUnset() bool { return v.kind == KindUndefined && v.num == undefinedUnset }
