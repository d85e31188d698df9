package config

import _ "embed"

// Schema is the JSON Schema (2020-12) of the file, for editors. A test generates it from the types here and docs/configuration.md.
//
//go:embed schema.json
var Schema string
