package mistral

import (
	"math"
	"slices"
	"strconv"

	"github.com/sightline-router/sightline/prompt/template"
)

// A tool's parameters must be a valid JSON Schema of draft 7: the keywords that the draft knows have values of the right
// kind. What they say is not looked at, and patterns are not compiled.

const maxSchemaDepth = 200

func goodSchema(v template.Value, depth int) bool {
	if v.Kind() == template.KindBool {
		return true
	}
	if v.Dict() == nil || depth > maxSchemaDepth {
		return false
	}
	for _, e := range v.Dict().Entries() {
		if !goodKeyword(e.Key.Text(), e.Value, depth+1) {
			return false
		}
	}
	return true
}

func goodKeyword(key string, v template.Value, depth int) bool {
	schema := func(v template.Value) bool { return goodSchema(v, depth) }
	switch key {
	case "$id", "$schema", "$ref", "$comment", "title", "description", "pattern", "format", "contentMediaType", "contentEncoding":
		return v.IsString()
	case "readOnly", "uniqueItems":
		return v.Kind() == template.KindBool
	case "examples", "enum":
		return isList(v)
	case "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum":
		return isNumber(v)
	case "multipleOf":
		return isNumber(v) && number(v) > 0
	case "maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties":
		return isInteger(v) && number(v) >= 0
	case "additionalItems", "contains", "additionalProperties", "propertyNames", "if", "then", "else", "not":
		return schema(v)
	case "items":
		return schema(v) || schemas(v, depth)
	case "allOf", "anyOf", "oneOf":
		return schemas(v, depth)
	case "required":
		return texts(v)
	case "definitions", "properties", "patternProperties":
		return eachValue(v, schema)
	case "dependencies":
		return eachValue(v, func(v template.Value) bool { return schema(v) || texts(v) })
	case "type":
		return simpleType(v) || texts(v) && len(v.Items()) > 0 && !slices.ContainsFunc(v.Items(), func(v template.Value) bool { return !simpleType(v) })
	}
	return true
}

func isList(v template.Value) bool { return v.Kind() == template.KindList }

func isNumber(v template.Value) bool { return isInteger(v) || v.Kind() == template.KindFloat }

// isInteger counts 1.0 as one.
func isInteger(v template.Value) bool {
	switch v.Kind() {
	case template.KindInt, template.KindBig:
		return true
	case template.KindFloat:
		return number(v) == math.Trunc(number(v))
	}
	return false
}

func number(v template.Value) float64 {
	text, err := template.AppendJSON(nil, v)
	if err != nil {
		return math.NaN()
	}
	f, _ := strconv.ParseFloat(string(text), 64)
	return f
}

func schemas(v template.Value, depth int) bool {
	return isList(v) && len(v.Items()) > 0 && !slices.ContainsFunc(v.Items(), func(v template.Value) bool { return !goodSchema(v, depth) })
}

// texts tells whether v is a list of different texts.
func texts(v template.Value) bool {
	if !isList(v) {
		return false
	}
	seen := make(map[string]bool, len(v.Items()))
	for _, v := range v.Items() {
		if !v.IsString() || seen[v.Text()] {
			return false
		}
		seen[v.Text()] = true
	}
	return true
}

func eachValue(v template.Value, good func(template.Value) bool) bool {
	return v.Dict() != nil && !slices.ContainsFunc(v.Dict().Entries(), func(e template.Entry) bool { return !good(e.Value) })
}

func simpleType(v template.Value) bool {
	return v.IsString() && slices.Contains([]string{"array", "boolean", "integer", "null", "number", "object", "string"}, v.Text())
}
