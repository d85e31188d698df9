// Command sightline routes multimodal chat requests, behind Envoy, to the worker that holds most of their KV cache.
package main

func main() {}
