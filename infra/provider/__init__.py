"""infra/provider: the native Pulumi provider `runpodv2` on RunPod's REST v2."""
