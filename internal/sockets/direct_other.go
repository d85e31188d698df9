//go:build !linux

package sockets

import "net"

// Direct returns c: see direct_linux.go.
func Direct(c net.Conn) net.Conn { return c }
