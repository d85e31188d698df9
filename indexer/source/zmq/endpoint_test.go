package zmq

import "testing"

// TestClaimed: of an endpoint that a worker's answer names only the port counts.
func TestClaimed(t *testing.T) {
	for claim, want := range map[string]string{"tcp://*:5557": "tcp://10.0.0.5:5559", "tcp://10.9.9.9:5557": "tcp://10.0.0.5:5559",
		"tcp://x@y:5557": "tcp://10.0.0.5:5559", "tcp://*:1021": "", "tcp://*:65534": "", "tcp://*": "", "ipc:///run/x:5557": "", "": "",
		"inproc://x:5557": "", "tcp://*:5557/x": ""} {
		if got, err := Claimed(claim, "10.0.0.5", 2); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q: got %q, %v; want %q", claim, got, err, want)
		}
	}
}
