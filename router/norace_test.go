//go:build !race

package router

const anew = 0
