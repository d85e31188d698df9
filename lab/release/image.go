package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is who runs Sightline in the image, as in the Dockerfile.
const user = 65532

// platformImage is one platform's part of the image: its processor, and the folder of its binaries.
type platformImage struct{ arch, bin string }

// descriptor is how one part of an image names another (OCI image specification 1.1).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// layout is an image as files.
type layout struct {
	files []file
	err   error
}

// blob adds a part, bytes or what becomes JSON.
func (l *layout) blob(mediaType string, part any) descriptor {
	data, ok := part.([]byte)
	if !ok {
		var err error
		data, err = json.Marshal(part)
		l.err = errors.Join(l.err, err)
	}
	sum := hexSum(data)
	l.files = append(l.files, file{"blobs/sha256/" + sum, data, 0o644})
	return descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(data)}
}

// writeImage writes the image as a tar of an OCI layout, with what the Dockerfile would put into it.
func (r *release) writeImage(of []platformImage) error {
	const oci = "application/vnd.oci.image."
	labels := map[string]string{
		"org.opencontainers.image.title":       "sightline",
		"org.opencontainers.image.description": "KV-cache-aware routing of text and images to vision-language workers, behind Envoy",
		"org.opencontainers.image.source":      "https://github.com/sightline-router/sightline",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     r.version,
		"org.opencontainers.image.revision":    r.commit,
	}
	roots := authorities()
	var l layout
	var manifests []descriptor
	for _, p := range of {
		files := []file{{"etc/ssl/certs/ca-certificates.crt", roots, 0o644}, {"run/sightline/", nil, 0o755}}
		for _, name := range binaries {
			f, err := read(filepath.Join(p.bin, name), 0o755)
			if err != nil {
				return err
			}
			files = append(files, f)
		}
		plain, err := r.tar("", files)
		if err != nil {
			return err
		}
		packed, err := r.pack("", files)
		if err != nil {
			return err
		}
		config := map[string]any{
			"created": r.at, "os": "linux", "architecture": p.arch,
			"config":  map[string]any{"User": fmt.Sprint(user), "Entrypoint": []string{"/sightline"}, "Labels": labels},
			"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hexSum(plain)}},
			"history": []any{map[string]any{"created": r.at, "created_by": "go build " + runtime.Version()}},
		}
		manifest := l.blob(oci+"manifest.v1+json", map[string]any{
			"schemaVersion": 2, "mediaType": oci + "manifest.v1+json", "annotations": labels,
			"config": l.blob(oci+"config.v1+json", config), "layers": []descriptor{l.blob(oci+"layer.v1.tar+gzip", packed)},
		})
		manifest.Platform = map[string]string{"os": "linux", "architecture": p.arch}
		manifests = append(manifests, manifest)
	}
	index := func(of ...descriptor) map[string]any {
		return map[string]any{"schemaVersion": 2, "mediaType": oci + "index.v1+json", "manifests": of, "annotations": labels}
	}
	all := l.blob(oci+"index.v1+json", index(manifests...))
	all.Annotations = map[string]string{"org.opencontainers.image.ref.name": r.version}
	entry, err := json.Marshal(index(all))
	l.files = append(l.files, file{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644}, file{"index.json", entry, 0o644})
	packed, tarred := r.tar("", l.files)
	return errors.Join(l.err, err, tarred, r.write("sightline-"+r.version+"-image.tar", packed),
		r.write("image-digest.txt", []byte(all.Digest+"\n")))
}

// authorities returns the certificates that Mozilla trusts without a condition, of the pinned module.
func authorities() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return out.Bytes()
}
