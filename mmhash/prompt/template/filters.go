package template

// The built-in filters of Jinja2 3.1.6 by name, with transformers' tojson. They are in filters_seq.go (sequences),
// filters_text.go, filters_html.go and filters_num.go.

// filter is one built-in filter. The parameters do not count the filtered value itself.
type filter struct {
	signatureOf
	fn       func(s *state, v Value, a []Value) Value
	variadic func(s *state, v Value, a *callArgs) Value
}

func fixed(fn func(s *state, v Value, a []Value) Value, params ...string) *filter {
	return &filter{signatureOf: takes(params...), fn: fn}
}

func variadic(fn func(s *state, v Value, a *callArgs) Value) *filter { return &filter{variadic: fn} }

var filters = map[string]*filter{
	"abs":            fixed(absFilter),
	"attr":           fixed(attrFilter, "name"),
	"batch":          fixed(batchFilter, "linecount", "fill_with?"),
	"capitalize":     softMethod("capitalize"),
	"center":         fixed(centerFilter, "width?"),
	"count":          fixed(lengthFilter),
	"d":              fixed(defaultFilter, "default_value?", "boolean?"),
	"default":        fixed(defaultFilter, "default_value?", "boolean?"),
	"dictsort":       fixed(dictSortFilter, "case_sensitive?", "by?", "reverse?"),
	"e":              fixed(escapeFilter),
	"escape":         fixed(escapeFilter),
	"filesizeformat": fixed(fileSizeFilter, "binary?"),
	"first":          fixed(firstFilter),
	"float":          fixed(floatFilter, "default?"),
	"forceescape":    fixed(forceEscapeFilter),
	"format":         variadic(formatFilter),
	"groupby":        fixed(groupByFilter, "attribute", "default?", "case_sensitive?"),
	"indent":         fixed(indentFilter, "width?", "first?", "blank?"),
	"int":            fixed(intFilter, "default?", "base?"),
	"items":          fixed(itemsFilter),
	"join":           fixed(joinFilter, "d?", "attribute?"),
	"last":           fixed(lastFilter),
	"length":         fixed(lengthFilter),
	"list":           fixed(listFilter),
	"lower":          softMethod("lower"),
	"map":            variadic(mapFilter),
	"max":            fixed(maxFilter, "case_sensitive?", "attribute?"),
	"min":            fixed(minFilter, "case_sensitive?", "attribute?"),
	"pprint":         fixed(pprintFilter),
	"random":         fixed(randomFilter),
	"reject":         variadic(selectFilter(false, false)),
	"rejectattr":     variadic(selectFilter(false, true)),
	"replace":        fixed(replaceFilter, "old", "new", "count?"),
	"reverse":        fixed(reverseFilter),
	"round":          fixed(roundFilter, "precision?", "method?"),
	"safe":           fixed(safeFilter),
	"select":         variadic(selectFilter(true, false)),
	"selectattr":     variadic(selectFilter(true, true)),
	"slice":          fixed(sliceFilter, "slices", "fill_with?"),
	"sort":           fixed(sortFilter, "reverse?", "case_sensitive?", "attribute?"),
	"string":         fixed(stringFilter),
	"striptags":      fixed(stripTagsFilter),
	"sum":            fixed(sumFilter, "attribute?", "start?"),
	"title":          fixed(titleFilter),
	"tojson":         fixed(toJSON, "ensure_ascii?", "indent?", "separators?", "sort_keys?"),
	"trim":           fixed(trimFilter, "chars?"),
	"truncate":       fixed(truncateFilter, "length?", "killwords?", "end?", "leeway?"),
	"unique":         fixed(uniqueFilter, "case_sensitive?", "attribute?"),
	"upper":          softMethod("upper"),
	"urlencode":      fixed(urlEncodeFilter),
	"urlize":         fixed(urlizeFilter, "trim_url_limit?", "nofollow?", "target?", "rel?", "extra_schemes?"),
	"wordcount":      fixed(wordCountFilter),
	"wordwrap":       fixed(wordWrapFilter, "width?", "break_long_words?", "wrapstring?", "break_on_hyphens?"),
	"xmlattr":        fixed(xmlAttrFilter, "autospace?"),
}

// softMethod is a filter that calls a str method without arguments on soft_str(value).
func softMethod(name string) *filter {
	return fixed(func(s *state, v Value, _ []Value) Value { return strMethods[name].fn(s, softStr(s, v), nil) })
}

// given reports whether an argument was passed and is not None.
func given(v Value) bool { return v.valid() && !v.IsNone() }

// flag gives the truth of an optional argument, def if it was not passed.
func flag(v Value, def bool) bool {
	if !v.valid() {
		return def
	}
	return truth(v)
}

// applyFilter calls a filter by name, for map.
func applyFilter(s *state, name, v Value, a *callArgs) Value {
	f := s.t.filters[name.Text()]
	if f == nil {
		if name.kind == KindUndefined {
			failUndefined(name)
		}
		raise(runtimeError, "No filter named %s.", quotePython(toStr(s, name)))
	}
	if f.variadic != nil {
		return f.variadic(s, v, a)
	}
	base := len(s.args)
	out := f.fn(s, v, bindArgs(s, a, &f.signatureOf, name.str))
	s.args = s.args[:base]
	return out
}

// applyTest calls a test by name, for select and its kin.
func applyTest(s *state, name, v Value, a *callArgs) bool {
	t := s.t.tests[name.Text()]
	if t == nil {
		if name.kind == KindUndefined {
			failUndefined(name)
		}
		raise(runtimeError, "No test named %s.", quotePython(toStr(s, name)))
	}
	base := len(s.args)
	ok := t.fn(s, v, bindArgs(s, a, &t.signatureOf, name.str))
	s.args = s.args[:base]
	return ok
}
