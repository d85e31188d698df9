package fleetsim

import "io"

func writePage(w io.Writer, all []Played) error { return nil }
