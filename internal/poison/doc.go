// Package poison reveals reads of memory that has been returned to a pool. With the build tag "poison", Fill overwrites a buffer
// with 0xDB when it goes back to its pool; without the tag Fill is empty and costs nothing. A string or slice of a request's body
// that outlives the request then always turns into 0xDB in tests, instead of occasionally into another client's text. The tests run
// with the tag (make unit, make e2e), and the binary that e2e serves with is built with it.
package poison
