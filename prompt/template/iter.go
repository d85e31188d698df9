package template

import "unicode/utf8"

// Iteration: the elements of everything that Python can iterate, and generators.

// generator is what Jinja2 makes lazily: used up by one pass, without a length, always true. Its elements are computed at
// once here.
type generator struct{ rest []Value }

func (*generator) typeName() string { return "generator" }

func generate(items []Value) Value { return object(&generator{items}) }

// iterable reports whether iter(v) works.
func iterable(v Value) bool {
	switch v.kind {
	case KindUndefined, KindList, KindTuple, KindDict, KindString, KindMarkup, KindRange:
		return true
	}
	switch v.ref.(type) {
	case *dictView, *generator:
		return true
	}
	return false
}

// elements gives what iterating over v gives; it uses a generator up. The caller must not change the slice.
func elements(s *state, v Value) []Value {
	var n int
	var at func(int) Value
	switch v.kind {
	case KindUndefined:
		return nil
	case KindList, KindTuple:
		return v.Items()
	case KindDict:
		d := v.ref.(*Dict)
		n, at = d.Len(), func(i int) Value { return d.entries[i].Key }
	case KindRange:
		r := v.ref.(*pyRange)
		n, at = r.len(), r.at
	case KindString, KindMarkup: // of a Markup too: only indexing keeps the class
		s.step(len(v.str))
		out := make([]Value, 0, len(v.str))
		for text := v.str; text != ""; {
			_, size := utf8.DecodeRuneInString(text)
			out = append(out, String(text[:size]))
			text = text[size:]
		}
		return out
	default:
		switch o := v.ref.(type) {
		case *dictView:
			n, at = o.d.Len(), o.at
		case *generator:
			rest := o.rest
			o.rest = nil
			return rest
		default:
			raise("'%s' object is not iterable", v.typeName())
		}
	}
	s.step(n)
	out := make([]Value, n)
	for i := range out {
		out[i] = at(i)
	}
	return out
}

// collect is list(v): a new slice with its elements.
func collect(s *state, v Value) []Value {
	items := elements(s, v)
	s.step(len(items))
	return append(make([]Value, 0, len(items)), items...)
}
