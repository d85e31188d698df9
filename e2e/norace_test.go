//go:build !race

package e2e

const slowdown = 1
