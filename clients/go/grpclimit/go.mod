module example.com/slidegate/clients/go/grpclimit

go 1.19

require (
	example.com/slidegate/clients/go v0.0.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20230711160842-782d3b101e98
	google.golang.org/grpc v1.58.3
)

replace example.com/slidegate/clients/go => ../
