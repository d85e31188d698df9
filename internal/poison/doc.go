// Package poison shows who still reads memory that was given back. With the build tag "poison" Fill overwrites a buffer
// with 0xDB where it goes back to its pool; without it Fill is empty and costs nothing. A string or slice of a request's
// body that outlives the request then turns into 0xDB in every test that looks at it, not once in a while into another
// client's words. The tests run with the tag (make unit, make e2e), and the binary that e2e serves with is built with it.
package poison
