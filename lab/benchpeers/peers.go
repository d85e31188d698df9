package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// peer is the back end of dynamo-index-bench to compare with: the one that Dynamo's router uses by default.
const peer = "crtc"

// figures are what one run of one trace gives, by the names of works below.
type figures struct {
	values   map[string]float64
	checksum string
}

// works are the figures compared, what each is called in our lines and in the peer's, and whether more is better. A
// peer without a line is left out: dynamo-index-bench as it stands has no warm ingest; add a second ingest after its
// removals that prints "crtc B warm: … 9500000 blocks/s" to compare that too.
var works = []struct {
	name, ours, theirs string
	more               bool
	goal               map[string]float64 // by trace, of the ratio
}{
	{"lookups/s", `lookup (\d+) lookups/s`, `lookup: .* (\d+) lookups/s`, true, map[string]float64{"A": 2, "B": 3, "P": 4}},
	{"lookup p50", `p50 ([\d.]+) us`, `p50 ([\d.]+) us`, false, nil},
	{"lookup p99", `p99 ([\d.]+) us`, `p99 ([\d.]+) us`, false, nil},
	{"ingest cold", `ingest (\d+) blocks/s`, `ingest: .* (\d+) blocks/s`, true, map[string]float64{"A": 1, "B": 1, "P": 1}},
	{"ingest warm", `warm (\d+) blocks/s`, `warm: .*?(\d+) blocks/s`, true, map[string]float64{"A": 1, "B": 1, "P": 1}},
	{"removals", `removal (\d+) blocks/s`, `remove: .* (\d+) blocks/s`, true, map[string]float64{"A": 1.3, "B": 1.3, "P": 1.3}},
	{"resident", `resident (\d+) B`, `no such line`, false, nil},
	{"bytes/block", `memory ([\d.]+) B/block stored`, `([\d.]+) B per held block`, false, nil},
}

// compare runs each trace in turns with the peer, prints both sides' lines and then, for each kind of work, the ratio
// of each round and its median: above 1 is better than the peer, whatever the unit.
func compare(traces []string, rounds int, sequences, lookups uint64, dir string) error {
	tool := ""
	if dir != "" {
		var err error
		tool, err = build(dir)
		if err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, name := range traces {
		ratios := map[string][]float64{}
		n := sequences
		if n == 0 {
			n = 100_000
			if name == "A" {
				n = 64
			}
		}
		count := []string{strconv.FormatUint(n, 10), strconv.FormatUint(lookups, 10)}
		for range rounds {
			ours, err := runTool(true, self, "-one", name, "-sequences", count[0], "-lookups", count[1])
			if err != nil {
				return err
			}
			if tool == "" {
				continue
			}
			theirs, err := runTool(false, tool, peer, name, count[0], count[1])
			if err != nil {
				return err
			}
			if ours.checksum != theirs.checksum {
				return fmt.Errorf("trace %s: our checksum %s, the peer's %s", name, ours.checksum, theirs.checksum)
			}
			for _, w := range works {
				a, b := ours.values[w.name], theirs.values[w.name]
				if !w.more {
					a, b = b, a
				}
				if a > 0 && b > 0 {
					ratios[w.name] = append(ratios[w.name], a/b)
				}
			}
		}
		for _, w := range works {
			r := ratios[w.name]
			if len(r) == 0 {
				continue
			}
			line := fmt.Sprintf("ratio %s %s", name, w.name)
			for _, v := range r {
				line += fmt.Sprintf(" %.2f", v)
			}
			slices.Sort(r)
			median := r[len(r)/2]
			line += fmt.Sprintf(" median %.2f", median)
			if goal := w.goal[name]; goal > 0 {
				line += fmt.Sprintf(" goal %.1f", goal)
				if median < goal {
					line += " MISSED"
				}
			}
			fmt.Println(line)
		}
	}
	return nil
}

// build makes the peer's tool where it is not built yet.
func build(dir string) (string, error) {
	tool := filepath.Join(dir, "target", "release", "dynamo-index-bench")
	if _, err := os.Stat(tool); err == nil {
		return tool, nil
	}
	cmd := exec.Command("cargo", "build", "--release", "--bin", "dynamo-index-bench")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("building %s: %w (want a writable copy of dynamo-index-bench and cargo in PATH)", dir, err)
	}
	return tool, nil
}

func runTool(ours bool, args ...string) (figures, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return figures{}, fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	f := figures{values: map[string]float64{}}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		if strings.Contains(line, " json:") || strings.Contains(line, " msgpack:") {
			continue // the peer's decoders
		}
		fmt.Println(line)
		for _, w := range works {
			pattern := w.theirs
			if ours {
				pattern = w.ours
			}
			if m := regexp.MustCompile(pattern).FindStringSubmatch(line); m != nil {
				f.values[w.name], _ = strconv.ParseFloat(m[1], 64)
			}
		}
		if m := regexp.MustCompile(`checksum.* ([0-9a-f]{16})$`).FindStringSubmatch(line); m != nil {
			f.checksum = m[1]
		}
	}
	return f, nil
}
