package envoy

import (
	"os"
	"testing"
)

func TestCommittedFile(t *testing.T) {
	want, err := Generate(Default())
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile("envoy.yaml", want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("envoy.yaml is not what Generate prints; run UPDATE=1 go test ./envoy -run TestCommittedFile")
	}
}
