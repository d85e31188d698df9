//go:build !linux

package extproc

import "net"

// direct returns lis: see direct_linux.go.
func direct(lis net.Listener) net.Listener { return lis }
