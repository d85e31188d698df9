package name

import (
	"fmt"

	"github.com/zeebo/xxh3"
)

// Dynamo gives the name by which NVIDIA Dynamo's frontend (1.6) knows a picture: XXH3-64 of the exact URL or whole data
// URL, as 16 hex digits. Its vLLM workers get it as a uuid of 64 digits, the rest zeros, and publish that.
func Dynamo(url string) string { return fmt.Sprintf("%016x", xxh3.HashString(url)) }
