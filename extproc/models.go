package extproc

import (
	"net/http"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// SetModels replaces Options.Models.
func (s *Server) SetModels(names []string) { s.models.Store(modelList(names, time.Now().Unix())) }

// askedModels returns the answer to a request for the list of models; nil if it is another request, or if the workers answer it.
// A worker knows only its own model, so with several models the list has to come from here. While we are down Envoy asks any
// worker.
func (c *call) askedModels() *extprocv3.ProcessingResponse {
	if c.head.method != http.MethodGet || c.head.path != "/v1/models" {
		return nil
	}
	return c.models.Load()
}

// modelList returns an OpenAI list of models as an answer for the client; nil without names.
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
	return immediate(http.StatusOK, list, ourDetails+"models")
}
