# Sightline alone in an image, with sightline-lab for simulated workers and measurements: no shell, no root, nothing that it writes to.
# make image builds it, and examples/compose.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# The version is git's. Where git cannot tell (a work tree whose .git lies elsewhere) it is (devel), with the commit of REVISION.
ENV CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH
ARG REVISION=
RUN go build -trimpath -ldflags "-s -w" -o / ./cmd/... || go build -buildvcs=false -trimpath \
    -ldflags "-s -w -X github.com/sightline-router/sightline/internal/buildinfo.revision=$REVISION" -o / ./cmd/...
RUN mkdir -p /empty/sightline

FROM scratch
ARG VERSION= REVISION=
LABEL org.opencontainers.image.title="sightline" \
      org.opencontainers.image.description="KV-cache-aware routing of text and images to vision-language workers, behind Envoy" \
      org.opencontainers.image.source="https://github.com/sightline-router/sightline" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
# A volume that is mounted at /run/sightline for the socket takes this folder's owner.
COPY --from=build --chown=65532:65532 /empty/sightline /run/sightline
COPY --from=build /sightline /sightline-lab /
USER 65532:65532
ENTRYPOINT ["/sightline"]
