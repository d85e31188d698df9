package extproc

import (
	"net/http"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// asksModels tells a request for the list of models. One worker knows its own model alone, so where there are several
// models the list is ours to give. With us down Envoy asks any worker.
func (c *call) asksModels() bool {
	return c.models != nil && c.head.method == http.MethodGet && c.head.path == "/v1/models"
}

// modelList is an OpenAI list of models as an answer for the client; nil without names.
func modelList(names []string, created int64) *extprocv3.ProcessingResponse {
	if len(names) == 0 {
		return nil
	}
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
	}
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{Object: "list"}
	for _, n := range names {
		list.Data = append(list.Data, model{n, "model", created, "sightline"})
	}
	return immediate(http.StatusOK, list, "sightline_models")
}
