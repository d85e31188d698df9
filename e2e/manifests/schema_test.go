package manifests

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	envoygateway "github.com/envoyproxy/gateway"
	_ "istio.io/api/annotation" // keeps the module, whose CRDs lie beside its Go files
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// documents cuts a YAML file into its documents, as JSON; a key given twice is an error.
func documents(data []byte) ([][]byte, error) {
	var out [][]byte
	for r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		text, err := yaml.YAMLToJSONStrict(doc)
		if err != nil {
			return nil, err
		}
		if string(text) != "null" {
			out = append(out, text)
		}
	}
}

// schemas validates manifests: built-in kinds by strict decoding into Kubernetes' own types, all others as an API server
// does it with a CRD.
type schemas struct {
	builtin runtime.Serializer
	custom  map[string]*custom // by apiVersion and kind
}

// custom is one version of a custom resource definition.
type custom struct {
	schema *structural.Structural
	types  validation.SchemaValidator
	rules  *cel.Validator
}

// newSchemas reads the CRDs of Gateway API and Envoy Gateway, of Istio, and those in dir unless that is "".
func newSchemas(dir string) (*schemas, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, autoscalingv2.AddToScheme, batchv1.AddToScheme,
		corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	s := &schemas{custom: map[string]*custom{}, builtin: jsonserializer.NewSerializerWithOptions(
		jsonserializer.DefaultMetaFactory, scheme, scheme, jsonserializer.SerializerOptions{Strict: true})}
	istio, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "istio.io/api").Output()
	if err != nil {
		return nil, fmt.Errorf("go list istio.io/api: %w", err)
	}
	files := []string{filepath.Join(strings.TrimSpace(string(istio)), "kubernetes", "customresourcedefinitions.gen.yaml")}
	if dir != "" {
		more, err := filepath.Glob(filepath.Join(dir, "crd_*.yaml"))
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	texts := [][]byte{envoygateway.GatewayCRDs}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	for _, text := range texts {
		docs, err := documents(text)
		if err != nil {
			return nil, err
		}
		for _, doc := range docs {
			if err := s.define(doc); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// define takes a CRD; other objects of a CRD bundle (admission policies) are passed over.
func (s *schemas) define(doc []byte) error {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := json.Unmarshal(doc, &crd); err != nil {
		return err
	}
	if crd.Kind != "CustomResourceDefinition" {
		return nil
	}
	for _, v := range crd.Spec.Versions {
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		var props apiextensions.JSONSchemaProps
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema, &props, nil); err != nil {
			return fmt.Errorf("%s %s: %w", crd.Name, v.Name, err)
		}
		c := &custom{}
		var err error
		c.schema, err = structural.NewStructural(&props)
		if err != nil {
			return fmt.Errorf("%s %s: %w", crd.Name, v.Name, err)
		}
		c.types, _, err = validation.NewSchemaValidator(&props)
		if err != nil {
			return fmt.Errorf("%s %s: %w", crd.Name, v.Name, err)
		}
		s.custom[crd.Spec.Group+"/"+v.Name+" "+crd.Spec.Names.Kind] = c
	}
	return nil
}

var errUnknownKind = errors.New("no schema of this kind")

// validate says what an API server would have against an object.
func (s *schemas) validate(doc []byte) error {
	var object map[string]any
	// Not encoding/json: CEL wants whole numbers, not floats.
	if err := json.Unmarshal(doc, &object); err != nil {
		return err
	}
	apiVersion, _ := object["apiVersion"].(string)
	kind, _ := object["kind"].(string)
	c := s.custom[apiVersion+" "+kind]
	if c == nil {
		_, _, err := s.builtin.Decode(doc, nil, nil)
		if runtime.IsNotRegisteredError(err) {
			return fmt.Errorf("%s %s: %w", apiVersion, kind, errUnknownKind)
		}
		return err
	}
	var wrong []error
	unknown := structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	for _, path := range pruning.PruneWithOptions(object, c.schema, true, unknown) {
		wrong = append(wrong, fmt.Errorf("unknown field %s", path))
	}
	defaulting.Default(object, c.schema)
	var list field.ErrorList
	list = append(list, validation.ValidateCustomResource(nil, object, c.types)...)
	list = append(list, listtype.ValidateListSetsAndMaps(nil, c.schema, object)...)
	if c.rules == nil { // compiled when first asked for: bundles hold many kinds that nobody uses
		c.rules = cel.NewValidator(c.schema, true, celconfig.PerCallLimit)
	}
	if c.rules != nil {
		broken, _ := c.rules.Validate(context.Background(), nil, c.schema, object, nil, celconfig.RuntimeCELCostBudget)
		list = append(list, broken...)
	}
	return errors.Join(append(wrong, list.ToAggregate())...)
}
