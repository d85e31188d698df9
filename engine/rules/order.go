package rules

import (
	"context"
	"net/http"
	"strconv"
)

// Order says how a release takes the order in which its waiting requests are served. The zero value: it takes none.
type Order struct {
	Header  string  // of a request: its place, an int64
	Assumed Serving // of a server that does not say how it serves
	// Ask asks a server at addr (host:port) how it serves. It returns Unsaid with the error if the server does not say.
	Ask func(ctx context.Context, client *http.Client, addr string) (Serving, error)
}

// Serving is the order in which a server serves waiting requests.
type Serving int32

const (
	Unsaid     Serving = iota // not known
	AsTheyCome                // whatever the header says
	LowFirst                  // by the header, the lowest number first
	HighFirst                 // by the header, the highest number first
)

// String returns the order in words, for people.
func (s Serving) String() string {
	return [...]string{"not known", "as they come", "lowest first", "highest first"}[s]
}

// Number returns the header's value for a request that is due at a number of milliseconds, the soonest of all to be served first; "": the
// server must get none.
func (s Serving) Number(due int64) string {
	switch s {
	case LowFirst:
		return strconv.FormatInt(due, 10)
	case HighFirst:
		return strconv.FormatInt(-due, 10)
	}
	return ""
}
