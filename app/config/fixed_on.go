//go:build fixed

package config

import (
	"slices"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// takeFixed moves the section "fixed" of a file to c.
func takeFixed(root ast.Node, v any) error {
	file, _ := root.(*ast.MappingNode)
	c, whole := v.(*Config)
	if file == nil || !whole {
		return nil
	}
	at := slices.IndexFunc(file.Values, func(one *ast.MappingValueNode) bool { return one.Key.GetToken().Value == "fixed" })
	if at < 0 {
		return nil
	}
	err := yaml.NodeToValue(file.Values[at].Value, &c.Fixed, times)
	file.Values = slices.Delete(file.Values, at, at+1)
	return err
}
