package config

import _ "embed"

// Schema is the JSON Schema (2020-12) of the file, for editors; a test makes it of the types here and of docs/configuration.md.
//
//go:embed schema.json
var Schema string
