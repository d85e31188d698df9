// Command benchpeers measures the index on the traces A, B and P, in the lines of Dynamo's index benchmark; and with
// -crate or DYNAMO_BENCH (a directory with the crate dynamo-index-bench, built or to be built by cargo) Dynamo's default
// index in turn with it, then the ratios, ours over theirs, one a line.
//
//	go run ./lab/benchpeers [-traces A,B,P] [-rounds 3] [-sequences 0] [-lookups 100000]
//
// Rates are in CPU time of the one thread that works; percentiles are wall time. Each measurement runs in a process of
// its own, from an empty heap. Ours ingests twice: cold, and again into its used memory; Dynamo's tool only cold, unless it
// is taught to (see peers.go). Memory is cleared ahead of use by a goroutine of the index, which is not in our ingest time.
//
//	go run ./lab/benchpeers -large
//
// measures the large index, 50 M held blocks of 64 workers, beside a small one.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

func main() {
	traces := flag.String("traces", "A,B,P", "which traces")
	rounds := flag.Int("rounds", 3, "how often, in turns with the peer")
	sequences := flag.Uint64("sequences", 0, "sequences of a trace; 0 is the reported number")
	lookups := flag.Uint64("lookups", 100_000, "lookups")
	crate := flag.String("crate", os.Getenv("DYNAMO_BENCH"), "a copy of dynamo-index-bench; none: only our own lines")
	one := flag.String("one", "", "measure this trace in this process and print, nothing else")
	big := flag.Bool("large", false, "the large index beside a small one; fails where a bound is missed")
	flag.Parse()
	var err error
	switch {
	case *one != "":
		err = measure(*one, *sequences, *lookups)
	case *big:
		err = large(*lookups)
	default:
		err = compare(strings.Split(*traces, ","), *rounds, *sequences, *lookups, *crate)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchpeers:", err)
		os.Exit(1)
	}
}
