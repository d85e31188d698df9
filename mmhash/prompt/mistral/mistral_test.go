package mistral

import "encoding/base64"

func encode64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
