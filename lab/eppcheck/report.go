package eppcheck

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

// Implementation says whose picker was checked, as conformance reports of Gateway API name it.
type Implementation struct {
	Organization string   `yaml:"organization" default:"sightline-router" help:"With --report: whose picker it is."`
	Project      string   `yaml:"project" default:"sightline" help:"With --report: the picker's project."`
	URL          string   `yaml:"url" name:"url" default:"https://github.com/sightline-router/sightline" help:"With --report: the project's address."`
	Version      string   `yaml:"version" name:"picker-version" help:"With --report: the picker's version."`
	Contact      []string `yaml:"contact" default:"https://github.com/sightline-router/sightline/issues" help:"With --report: where its maintainers are reached."`
}

// extension is the release whose protocol is checked; its proposal 004 is version 1.0.0 of the protocol.
const extension = "v1.6.0"

// document is a ConformanceReport as kubernetes-sigs/gateway-api-inference-extension collects them (conformance/reports). It has no profile
// for pickers yet; the name is that of the folder that it keeps for one.
type document struct {
	Extension      string `yaml:"GatewayAPIInferenceExtensionVersion"`
	APIVersion     string `yaml:"apiVersion"`
	Kind           string `yaml:"kind"`
	Date           string `yaml:"date"`
	Mode           string `yaml:"mode"`
	Implementation `yaml:"implementation"`
	Profiles       []profile `yaml:"profiles"`
}

type profile struct {
	Name    string `yaml:"name"`
	Core    core   `yaml:"core"`
	Summary string `yaml:"summary"`
}

type core struct {
	Result     string     `yaml:"result"`
	Statistics statistics `yaml:"statistics"`
	Failed     []string   `yaml:"failedTests,omitempty"`
	Skipped    []string   `yaml:"skippedTests,omitempty"`
}

type statistics struct {
	Failed  int `yaml:"Failed"`
	Passed  int `yaml:"Passed"`
	Skipped int `yaml:"Skipped"`
}

// write writes the results as a ConformanceReport. A case that could not be asked, because the picker named no endpoint, is skipped.
func write(file string, results []Result, of Implementation, at time.Time) error {
	c := core{Result: "success"}
	for _, r := range results {
		switch {
		case r.Err == nil:
			c.Statistics.Passed++
		case r.Skipped():
			c.Statistics.Skipped++
			c.Skipped = append(c.Skipped, r.Name)
		default:
			c.Statistics.Failed++
			c.Failed = append(c.Failed, r.Name)
		}
	}
	summary := "Core tests succeeded."
	if c.Statistics.Failed > 0 {
		c.Result = "failure"
		summary = fmt.Sprintf("Core tests failed with %d test failures.", c.Statistics.Failed)
	} else if c.Statistics.Skipped > 0 {
		c.Result = "partial"
		summary = fmt.Sprintf("Core tests partially succeeded with %d test skips.", c.Statistics.Skipped)
	}
	text, err := yaml.Marshal(document{Extension: extension, APIVersion: "gateway.networking.k8s.io/v1", Kind: "ConformanceReport",
		Date: at.UTC().Format(time.RFC3339), Mode: "default", Implementation: of,
		Profiles: []profile{{Name: "EPP", Core: c, Summary: summary}}})
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644) //nolint:gosec // made to be published
}

// clauses say what each case checks, by the beginning of its name: a section of proposal 004 of the Inference Extension, and what that
// demands.
var clauses = []struct{ of, section, demands string }{
	{"request without a body", "Destination Endpoint", "every request gets an endpoint, the same in header and metadata"},
	{"full duplex", "introduction", "streaming must be supported; every byte of the body is returned"},
	{"buffered", "introduction", "ext_proc must be implemented; some gateways set its mode BUFFERED"},
	{"without protocol_config", "introduction", "ext_proc must be implemented; older Envoys do not say the mode"},
	{"subset hint as", "Endpoint Subset", "only endpoints of the list may be selected"},
	{"subset hint without an eligible", "Endpoint Subset", "none of the list is eligible: 503"},
	{"subset hint of IPv6 endpoints that are not there", "Endpoint Subset", "none of the list is eligible: 503"},
	{"empty subset hint", "Endpoint Subset", "the list is empty: an ImmediateResponse with 503"},
	{"subset hint's namespace without the key", "Endpoint Subset", "the key is not set: the pool's selector decides"},
	{"a client's own endpoint header", "Destination Endpoint", "the picker sets the header, whatever the request had"},
	{"no eligible endpoint", "Destination Endpoint", "no endpoint is ready: an ImmediateResponse with 503"},
	{"response that names", "Destination Endpoint Served", "it carries the endpoint that served, and is answered"},
	{"gRPC health", "Health Checking", "liveness, readiness and the name of ext_proc's service are answered"},
}

// Clause returns the section of the protocol that a case checks, and what it demands.
func (r *Result) Clause() (section, demands string) {
	for _, c := range clauses {
		if strings.HasPrefix(r.Name, c.of) {
			return c.section, c.demands
		}
	}
	return "", ""
}
