package config

// Route applies to requests of Envoy routes that do not say otherwise in their gRPC metadata.
type Route struct {
	Picker bool `yaml:"-"` // only the endpoint-picker protocol is spoken: serve --pool
	// OneAddress names only the first choice in the endpoint-picker protocol, for gateways that take one address.
	OneAddress bool `yaml:"one_address"`
}

// Pool ties a model to Envoy routes; at least one condition must be given.
type Pool struct {
	Model  string `yaml:"model"`
	Path   string `yaml:"path"`   // prefix such as /qwen, removed before the worker sees it
	Host   string `yaml:"host"`   // host name, any port
	Header string `yaml:"header"` // name=value
}

// PeerTLS holds Envoy's TLS settings towards a peer: PEM files, as Envoy sees them. Off without CA.
type PeerTLS struct {
	CA    string   `yaml:"ca"`
	Cert  string   `yaml:"cert"` // Envoy's own, if the peer requires one
	Key   string   `yaml:"key"`
	Names []string `yaml:"names"` // IP addresses or names that the peer's certificate may be valid for; default: its addresses
}
