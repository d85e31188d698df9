package template

import (
	"math"
	"slices"
)

// Dict is a Python dict: keys keep the order in which they were first set and are compared by Python's equality (1 == 1.0 == True).
// Small dicts are searched linearly, which is faster than hashing for the few keys of a message; larger ones keep an index. A Dict
// may be read by many goroutines once it is filled.
type Dict struct {
	entries []Entry
	index   map[dictKey]int32
}

// Entry is one pair of a Dict.
type Entry struct{ Key, Value Value }

// indexFrom is the size from which a Dict keeps a hash index.
const indexFrom = 12

// dictKey identifies keys that are equal in Python.
type dictKey struct {
	class byte
	num   uint64
	str   string
}

// NewDict makes an empty Dict with room for n pairs.
func NewDict(n int) *Dict { return &Dict{entries: make([]Entry, 0, n)} }

// Value returns the dict as a Value. The Dict must not be changed afterwards while a rendering uses it.
func (d *Dict) Value() Value { return Value{kind: KindDict, ref: d} }

// Len returns the number of pairs.
func (d *Dict) Len() int { return len(d.entries) }

// Entries returns the pairs in order. The caller must not change them.
func (d *Dict) Entries() []Entry { return d.entries }

// Set sets a string key and returns the dict. A new key goes to the end, an existing one keeps its place.
func (d *Dict) Set(key string, v Value) *Dict {
	d.set(String(key), v)
	return d
}

// Get returns the value of a string key.
func (d *Dict) Get(key string) (Value, bool) {
	if i := d.find(key); i >= 0 {
		return d.entries[i].Value, true
	}
	return Value{}, false
}

func (d *Dict) find(key string) int {
	if d.index != nil {
		if i, ok := d.index[dictKey{class: 's', str: key}]; ok {
			return int(i)
		}
		return -1
	}
	for i := range d.entries {
		if k := &d.entries[i].Key; k.str == key && k.IsString() {
			return i
		}
	}
	return -1
}

// lookup finds any key. An unhashable key is an error.
func (d *Dict) lookup(key Value) (Value, bool) {
	if i := d.findKey(key); i >= 0 {
		return d.entries[i].Value, true
	}
	return Value{}, false
}

func (d *Dict) findKey(key Value) int {
	if key.IsString() {
		return d.find(key.str)
	}
	k := keyOf(key)
	if d.index != nil {
		if i, ok := d.index[k]; ok {
			return int(i)
		}
		return -1
	}
	return slices.IndexFunc(d.entries, func(e Entry) bool { return keyOf(e.Key) == k })
}

func (d *Dict) set(key, v Value) {
	if i := d.findKey(key); i >= 0 {
		d.entries[i].Value = v
		return
	}
	d.add(key, v)
}

// update sets all pairs of other.
func (d *Dict) update(other *Dict) {
	for _, e := range other.entries {
		d.set(e.Key, e.Value)
	}
}

func (d *Dict) clone() *Dict {
	c := NewDict(len(d.entries))
	c.update(d)
	return c
}

// add appends a pair whose key is known to be new.
func (d *Dict) add(key, v Value) {
	d.entries = append(d.entries, Entry{key, v})
	switch {
	case d.index != nil:
		d.index[keyOf(key)] = int32(len(d.entries) - 1)
	case len(d.entries) == indexFrom:
		d.index = make(map[dictKey]int32, max(2*len(d.entries), cap(d.entries)))
		for i := range d.entries {
			d.index[keyOf(d.entries[i].Key)] = int32(i)
		}
	}
}

// keyOf returns the identity of a hashable value. Lists, dicts and objects are not hashable here, and tuples are not supported as
// keys: no chat template uses them.
func keyOf(v Value) dictKey {
	switch v.kind {
	case KindString, KindMarkup:
		return dictKey{class: 's', str: v.str}
	case KindBool, KindInt:
		return dictKey{class: 'i', num: v.num}
	case KindFloat:
		f := v.float()
		if f == math.Trunc(f) && math.Abs(f) < 1<<62 {
			return dictKey{class: 'i', num: uint64(int64(f))}
		}
		return dictKey{class: 'f', num: v.num}
	case KindNone:
		return dictKey{class: 'n'}
	case KindUndefined:
		return dictKey{class: 'u'}
	case KindTuple, KindBig:
		unsupported("a %s as a key", v.typeName())
	}
	raise("unhashable type: '%s'", v.typeName())
	return dictKey{}
}

// keysOf, valuesOf and pairsOf return the results of iterating over a dict, its values and its items.
func keysOf(s *state, d *Dict) []Value {
	return each(s, d, func(e Entry) Value { return e.Key })
}

func valuesOf(s *state, d *Dict) []Value {
	return each(s, d, func(e Entry) Value { return e.Value })
}

func pairsOf(s *state, d *Dict) []Value {
	s.grow(d.Len() * tupleBytes)
	return each(s, d, func(e Entry) Value { return newTuple(e.Key, e.Value) })
}

func each(s *state, d *Dict, part func(Entry) Value) []Value {
	s.list(d.Len())
	out := make([]Value, len(d.entries))
	for i, e := range d.entries {
		out[i] = part(e)
	}
	return out
}
