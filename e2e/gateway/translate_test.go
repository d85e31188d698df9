package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// static makes one bootstrap of what egctl prints: endpoints and routes go to where they are referred to. pods take the
// place of the Service's address, which is all that egctl knows.
func static(t *testing.T, dump []byte, admin string) (config []byte, listener string) {
	t.Helper()
	var top struct {
		XDS map[string]struct{ Configs []map[string]any }
	}
	if err := json.Unmarshal(dump, &top); err != nil {
		t.Fatal(err)
	}
	of := map[string]map[string]any{} // by the part of the dump
	for _, x := range top.XDS {
		for _, c := range x.Configs {
			kind := fmt.Sprint(c["@type"])
			of[kind[strings.LastIndexByte(kind, '.')+1:]] = c
		}
	}
	each := func(part, list, member string) (out []map[string]any) {
		entries, _ := of[part][list].([]any)
		for _, e := range entries {
			m, _ := e.(map[string]any)
			if state, ok := m["activeState"].(map[string]any); ok {
				m = state
			}
			inner, _ := m[member].(map[string]any)
			delete(inner, "@type")
			out = append(out, inner)
		}
		return out
	}
	endpoints, routes := map[any]map[string]any{}, map[any]map[string]any{}
	for _, e := range append(each("EndpointsConfigDump", "dynamicEndpointConfigs", "endpointConfig"),
		each("EndpointsConfigDump", "staticEndpointConfigs", "endpointConfig")...) {
		endpoints[e["clusterName"]] = e
	}
	for _, r := range each("RoutesConfigDump", "dynamicRouteConfigs", "routeConfig") {
		routes[r["name"]] = r
	}
	clusters := each("ClustersConfigDump", "dynamicActiveClusters", "cluster")
	for _, c := range clusters {
		eds, ok := c["edsClusterConfig"].(map[string]any)
		if !ok {
			continue
		}
		delete(c, "edsClusterConfig")
		c["type"], c["loadAssignment"] = "STATIC", endpoints[eds["serviceName"]]
		if c["name"] == "httproute/llm/chat/rule/0" {
			var lb []any
			for _, ip := range podIPs {
				lb = append(lb,
					map[string]any{"endpoint": map[string]any{"address": map[string]any{"socketAddress": map[string]any{"address": ip,
						"portValue": 8000}}}})
			}
			c["loadAssignment"] = map[string]any{"clusterName": c["name"],
				"endpoints": []any{map[string]any{"locality": map[string]any{}, "lbEndpoints": lb}}}
		}
	}
	var inline func(any)
	inline = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if rds, ok := v["rds"].(map[string]any); ok {
				delete(v, "rds")
				v["routeConfig"] = routes[rds["routeConfigName"]]
			}
			for _, x := range v {
				inline(x)
			}
		case []any:
			for _, x := range v {
				inline(x)
			}
		}
	}
	listeners := each("ListenersConfigDump", "dynamicListeners", "listener")
	for _, l := range listeners {
		inline(l)
		text, _ := json.Marshal(l)
		listener = fmt.Sprint("127.0.0.1:", gjson.GetBytes(text, "address.socketAddress.portValue").Int())
	}
	host, port, _ := strings.Cut(admin, ":")
	config, err := json.Marshal(map[string]any{
		"admin": map[string]any{"address": map[string]any{"socketAddress": map[string]any{
			"address": host, "portValue": json.Number(port)}}},
		"staticResources": map[string]any{"listeners": listeners, "clusters": clusters}})
	if err != nil {
		t.Fatal(err)
	}
	return config, listener
}

// What Envoy Gateway makes of the folder envoy-gateway, as egctl translates it, runs in Envoy and routes.
func TestTranslate(t *testing.T) {
	need(t)
	dir := t.TempDir()
	var all []string
	for _, f := range []string{"base/namespace.yaml", "base/service.yaml", "workers/vllm.yaml", "envoy-gateway/gateway.yaml",
		"envoy-gateway/policies.yaml"} {
		text, err := os.ReadFile(manifests + f)
		if err != nil {
			t.Fatal(err)
		}
		// Of a Service without an address egctl finds no endpoint.
		all = append(all, strings.ReplaceAll(string(text), "clusterIP: None", "clusterIP: 10.0.0.20"))
	}
	file := filepath.Join(dir, "all.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	translate := func() ([]byte, string, error) {
		cmd := exec.Command("egctl", "x", "translate", "--from", "gateway-api", "--to", "xds", "-o", "json", "-f", file)
		var out, wrong bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &wrong
		err := cmd.Run()
		return out.Bytes(), wrong.String(), err
	}
	good := strings.Join(all, "\n---\n")
	write(strings.Replace(good, "endpointOverride:", "endpointOveride:", 1))
	if _, wrong, err := translate(); err == nil || !strings.Contains(wrong, "endpointOveride") {
		t.Errorf("a misspelt field: got %v, %s, want an error, %q in it", err, wrong, "endpointOveride")
	}
	write(good)
	dump, wrong, err := translate()
	if err != nil {
		t.Fatalf("%v\n%s", err, wrong)
	}
	config, listener := static(t, dump, "127.0.0.1:19901")
	envoyFile := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(envoyFile, config, 0o600); err != nil {
		t.Fatal(err)
	}
	pods := startPods(t)
	ownFile := filepath.Join(dir, "sightline.yaml")
	if err := os.WriteFile(ownFile, []byte(listed(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	sightline := run(t, nil, os.Getenv("SIGHTLINE"), "serve", "-c", ownFile)
	// A picker that fails Envoy's first check, before any traffic, is asked again after a minute only.
	wantFleet(t, "10.0.0.11:8000:live 10.0.0.12:8000:live 10.0.0.13:8000:live")
	run(t, nil, os.Getenv("ENVOY"), "-c", envoyFile, "--disable-hot-restart", "-l", "warn", "--concurrency", "2")
	drive(t, "http://"+listener, pods, sightline)
}
