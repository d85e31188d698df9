package template

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sightline-router/sightline/body/jsonread"
)

// JSON to Values, with the results of Python's json.loads: order is kept, the last of equal keys wins at the place of the first,
// numbers with a fraction or exponent are floats and others integers, which beyond 64 bits keep only their digits.

// maxIntDigits is the length of the longest integer that Python reads: sys.get_int_max_str_digits().
const maxIntDigits = 4300

// maxJSONDepth bounds nesting, because FromJSON reads clients' data.
const maxJSONDepth = 500

// maxJSONValues bounds the values of one text. Each takes up to a hundred bytes of memory and as little as two of text.
const maxJSONValues = 1 << 17

// FromJSON reads one JSON text. Strings without escapes point into raw. NaN and Infinity, invalid UTF-8 and unpaired surrogates,
// which no tokenizer accepts, are errors. An error that wraps ErrLimit means that the text exceeds a bound of this package; engines
// may still read it.
func FromJSON(raw string) (Value, error) {
	if !utf8.ValidString(raw) {
		return Value{}, fmt.Errorf("template: JSON: invalid UTF-8")
	}
	r := jsonReader{Reader: jsonread.New(raw)}
	v := r.value(0)
	r.End()
	if err := r.Err(); err != nil {
		return Value{}, fmt.Errorf("template: JSON: %w", err)
	}
	return v, nil
}

var onlyPython = regexp.MustCompile(`NaN|Infinity|\\u[dD][89a-fA-F]`)

// OnlyPython reports whether Python's json.loads may read a text that FromJSON does not.
func OnlyPython(text string) bool { return onlyPython.MatchString(text) }

// jsonReader reads values depth first. Entries and items are collected on stacks and then copied to shared blocks of memory, so
// that a body of many small objects costs few allocations.
type jsonReader struct {
	jsonread.Reader
	entries []Entry // of the objects being read
	items   []Value // of the arrays being read
	entryAt []Entry // the unused rest of the current block, as below
	itemAt  []Value
	dictAt  []Dict
	listAt  []List
	read    int // values
}

// doubled makes room for at least one more element by doubling the capacity: append grows long slices by a quarter, which costs
// five times as much here.
func doubled[T any](s []T) []T {
	if n := len(s); n == cap(s) {
		return slices.Grow(s, max(n, 8))
	}
	return s
}

// carve takes n elements from a block of memory, or from a new one of at least size.
func carve[T any](block *[]T, n, size int) []T {
	if n > len(*block) {
		*block = make([]T, max(size, n))
	}
	out := (*block)[:n:n]
	*block = (*block)[n:]
	return out
}

func (r *jsonReader) value(depth int) Value {
	if depth > maxJSONDepth {
		r.Fail(fmt.Errorf("%w: nested deeper than %d", ErrLimit, maxJSONDepth))
		return Value{}
	}
	r.read++
	if r.read > maxJSONValues {
		r.Fail(fmt.Errorf("%w: more than %d values", ErrLimit, maxJSONValues))
		return Value{}
	}
	switch r.Peek() {
	case '"':
		return String(r.Text())
	case '{':
		return r.object(depth)
	case '[':
		return r.array(depth)
	case 'n', 't', 'f':
		switch r.Word() {
		case "null":
			return None
		case "true":
			return pyTrue
		case "false":
			return pyFalse
		}
		r.Want("a value")
		return Value{}
	}
	return r.number()
}

func (r *jsonReader) object(depth int) Value {
	from := len(r.entries)
	r.Object(func(key string) {
		v := r.value(depth + 1)
		r.entries = append(doubled(r.entries), Entry{String(key), v})
	})
	if r.Err() != nil {
		return Value{}
	}
	mine := r.entries[from:]
	d := &carve(&r.dictAt, 1, 16)[0]
	d.entries = carve(&r.entryAt, len(mine), 32)[:0]
	for _, e := range mine {
		d.set(e.Key, e.Value)
	}
	clear(mine)
	r.entries = r.entries[:from]
	return d.Value()
}

func (r *jsonReader) array(depth int) Value {
	from := len(r.items)
	r.List(func() {
		v := r.value(depth + 1)
		r.items = append(doubled(r.items), v)
	})
	if r.Err() != nil {
		return Value{}
	}
	mine := r.items[from:]
	l := &carve(&r.listAt, 1, 8)[0]
	l.items = carve(&r.itemAt, len(mine), 16)
	copy(l.items, mine)
	clear(mine)
	r.items = r.items[:from]
	return Value{kind: KindList, ref: l}
}

func (r *jsonReader) number() Value {
	lit, whole := r.Number()
	switch {
	case !whole:
		f, _ := strconv.ParseFloat(lit, 64) // infinite if it is too large, as in Python
		return Float(f)
	case len(lit) < 19:
		n, _ := strconv.ParseInt(lit, 10, 64)
		return Int(n)
	case len(strings.TrimPrefix(lit, "-")) > maxIntDigits:
		r.Want(fmt.Sprintf("an integer of at most %d digits", maxIntDigits))
		return Value{}
	}
	if n, err := strconv.ParseInt(lit, 10, 64); err == nil {
		return Int(n)
	}
	return Value{kind: KindBig, str: lit}
}
