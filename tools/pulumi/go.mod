// The Pulumi CLI, for machines where neither a package nor the official installer has it (scripts/pulumi-cli builds it).
module nightbatch/tools/pulumi

go 1.25.11

tool github.com/pulumi/pulumi/pkg/v3/cmd/pulumi

require (
	github.com/pulumi/pulumi/pkg/v3 v3.276.0
	github.com/pulumi/pulumi/sdk/v3 v3.276.0
)

replace github.com/atotto/clipboard => github.com/tgummerer/clipboard v0.0.0-20241001131231-d02d263e614e
