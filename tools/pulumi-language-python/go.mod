// Pulumi's Python language host. The last version inside the sdk module: later ones are a module of their own that not every proxy has.
// It drives the newer CLI of ../pulumi; docs/install.md says what it cannot do.
module nightbatch/tools/pulumi-language-python

go 1.25.11

tool github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python

require github.com/pulumi/pulumi/sdk/v3 v3.77.1
