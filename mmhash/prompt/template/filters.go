package template

// The built-in filters of Jinja2 3.1.6 by name, with transformers' tojson. They are in filters_seq.go (sequences),
// filters_text.go and filters_num.go. Left out, because no prompt can depend on them: filesizeformat, pprint, random,
// urlize and wordwrap.

var filters = table("", "filesizeformat pprint random urlize wordwrap",
	def("abs", "", absFilter),
	def("attr", "name", attrFilter),
	def("batch", "linecount fill_with?", batchFilter),
	softMethod("capitalize"),
	def("center", "width?", centerFilter),
	def("count", "", lengthFilter),
	def("d", "default_value? boolean?", defaultFilter),
	def("default", "default_value? boolean?", defaultFilter),
	def("dictsort", "case_sensitive? by? reverse?", dictSortFilter),
	def("e", "", escapeFilter),
	def("escape", "", escapeFilter),
	def("first", "", firstFilter),
	def("float", "default?", floatFilter),
	def("forceescape", "", func(s *state, v Value, _ []Value) Value { return markup(escapeHTML(toStr(s, v))) }),
	raw("format", formatFilter),
	def("groupby", "attribute default? case_sensitive?", groupByFilter),
	def("indent", "width? first? blank?", indentFilter),
	def("int", "default? base?", intFilter),
	def("items", "", itemsFilter),
	def("join", "d? attribute?", joinFilter),
	def("last", "", lastFilter),
	def("length", "", lengthFilter),
	def("list", "", func(s *state, v Value, _ []Value) Value { return NewList(collect(s, v)...) }),
	softMethod("lower"),
	raw("map", mapFilter),
	def("max", "case_sensitive? attribute?", extremeFilter(">", 1)),
	def("min", "case_sensitive? attribute?", extremeFilter("<", -1)),
	raw("reject", selectFilter(false, false)),
	raw("rejectattr", selectFilter(false, true)),
	def("replace", "old new count?", replaceFilter),
	def("reverse", "", reverseFilter),
	def("round", "precision? method?", roundFilter),
	def("safe", "", func(s *state, v Value, _ []Value) Value { return markup(toStr(s, v)) }),
	raw("select", selectFilter(true, false)),
	raw("selectattr", selectFilter(true, true)),
	def("slice", "slices fill_with?", sliceFilter),
	def("sort", "reverse? case_sensitive? attribute?", sortFilter),
	def("string", "", func(s *state, v Value, _ []Value) Value { return softStr(s, v) }),
	def("striptags", "", func(s *state, v Value, _ []Value) Value { return String(stripTags(s, toStr(s, v))) }),
	def("sum", "attribute? start?", sumFilter),
	def("title", "", titleFilter),
	def("tojson", "ensure_ascii? indent? separators? sort_keys?", toJSON),
	def("trim", "chars?", func(s *state, v Value, a []Value) Value { return stripText(s, softStr(s, v), a[0], true, true) }),
	def("truncate", "length? killwords? end? leeway?", truncateFilter),
	def("unique", "case_sensitive? attribute?", uniqueFilter),
	softMethod("upper"),
	def("urlencode", "", urlEncodeFilter),
	def("wordcount", "", wordCountFilter),
	def("xmlattr", "autospace?", xmlAttrFilter),
)

// softMethod is a filter that calls a str method without arguments on soft_str(value).
func softMethod(name string) *builtin {
	return def(name, "", func(s *state, v Value, _ []Value) Value { return strMethods[name].fn(s, softStr(s, v), nil) })
}

// apply calls a filter or test that a template names by a value, as map and select do.
func apply(s *state, what string, table map[string]*builtin, name, v Value, a *callArgs) Value {
	b := table[name.Text()]
	if b == nil {
		mustExist(name)
		raise(runtimeError, "No %s named %s.", what, quotePython(toStr(s, name)))
	}
	return b.invoke(s, v, a)
}
