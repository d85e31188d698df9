package command

import (
	"context"
	"fmt"

	"github.com/sightline-router/sightline/envoy"
)

type envoyCmd struct{}

func (envoyCmd) Run(ctx context.Context) error {
	path, err := envoy.Binary(ctx, "", fetching)
	if err == nil {
		fmt.Println(path)
	}
	return err
}
