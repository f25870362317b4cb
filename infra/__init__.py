"""infra: the Pulumi program, the provider on REST v2, the review of its previews. May import contract; only this room imports pulumi."""
